"""Embed: rows of a table, looked up by token or position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from engine.model.program.graph import Value
from engine.model.program.operations.kerneled import Emitter, Kerneled, Numbers, TorchStep
from engine.model.program.pack import Packer, Product
from engine.model.program.weights import Weight


@dataclass(eq=False)
class Embed(Kerneled):
    """Looks up rows of a table.

    Attributes:
        table: [rows, width].
        positions: whether rows are looked up by position, not by token id.
    """

    packs_last: ClassVar[bool] = True
    # Scales are products of two in some files, and are rounded to float16; if codes were
    # recognized, numbers had been rounded to bfloat16.
    coded_tolerance: ClassVar[float] = 0.005
    out: Value
    table: Tensor
    positions: bool

    def matrices(self) -> tuple[Weight, ...]:
        """See `Operation.matrices`."""
        return (self.table,)

    def pack(self, packer: Packer) -> tuple[Product, ...]:
        """Pack its table, or find it packed by the product to which it is tied."""
        packed = packer.table(self.table)
        if packed is not None:
            packer.give_up(self)
            weight, how = packed
            return (Product(weight, None, how, 0, self.out.width),)
        table = packer.dense(self.table).contiguous()
        if packer.is_compact(self.table):
            packer.give_up(self)
        return (Product(table, None, None, 0, self.out.width, is_packed=False),)

    def emit(self, to: Emitter, *products: Product) -> None:
        """See `Kerneled.emit`."""
        (product,) = products
        to.program.embed(
            out=to.place_of(self.out),
            table=product.weight,
            vocab_size=len(self.table),
            packed=product.is_packed,
            positions=self.positions,
            quantization=product.how,
        )

    def run(self, of: Numbers, step: TorchStep) -> Tensor:
        """See `Kerneled.run`."""
        return self.table[step.positions if self.positions else step.ids]
