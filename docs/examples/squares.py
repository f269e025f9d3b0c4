"""An operation of one's own: the squares of a matrix product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from engine.model.program.agree import agree
from engine.model.program.capture import Call
from engine.model.program.graph import Operation, Value, View
from engine.model.program.operations.kerneled import Emitter, Numbers, Weighted, wide
from engine.model.program.pack import Packer, Product, below_each_other
from engine.model.program.reading import Reading, weight_and_bias
from engine.model.program.weights import Weight, dense

if TYPE_CHECKING:
    from engine.model.gpu.launches import Launches


@dataclass(eq=False)
class Squares(Weighted):
    """(x weight^T)^2, number by number."""

    out: Value
    x: View
    weights: tuple[Weight, ...]
    biases: tuple[Tensor, ...] = ()

    def reads_past(self, multiple: int) -> list[View]:
        """See `Operation.reads_past`."""
        return [self.x]

    def pack(self, packer: Packer) -> tuple[Product, ...]:
        """See `Kerneled.pack`."""
        weight, how = packer.pack(self.weights, below_each_other)
        packer.give_up(self)
        return (Product(weight, None, how, 0, self.out.width),)

    def emit(self, to: Emitter, *products: Product) -> None:
        """See `Kerneled.emit`."""
        (product,), out = products, to.place_of(self.out)
        to.program.linear(
            out=out,
            x=to.place(self.x),
            weight=product.weight,
            n=product.columns,
            k=self.x.columns,
            quantization=product.how,
        )
        to.program.elementwise(out=out, x=out, combine="multiply", y=out)

    def compute(self, of: Numbers) -> Tensor:
        """See `Kerneled.compute`."""
        x, (weight,) = of(self.x), self.weights
        return wide(F.linear(x, dense(weight).to(x.dtype))).square()


def read_squares(
    reading: Reading, call: Call, output: Tensor, out: Value
) -> list[Operation] | None:
    """A module whose result is the squares of its product."""
    module, views = reading.module_on(call)
    if module is None or len(views) != 1:
        return None
    (x,), (weight, bias) = views, weight_and_bias(module) or (None, None)
    if weight is None or bias is not None or weight.shape != (out.width, x.columns):
        return None
    if not agree(F.linear(x.reference, weight).square(), out.reference):
        return None
    return [Squares(out, x, (weight,))]


def launch_squares(to: Launches, operation: Squares) -> None:
    """Add its launches on a GPU."""
    out, x = to.out(operation), to.tensor(operation.x)
    columns = dense(operation.weights[0]).t()
    to.matrix(
        operation.out.per_sample,
        lambda made, given: torch.mm(given, columns, out=made).square_(),
        out,
        x,
    )
