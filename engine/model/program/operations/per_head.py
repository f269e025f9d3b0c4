"""PerHead: the product of each head with the head's own matrix."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.program.capture import Call, KernelCall
from engine.model.program.graph import Operation, Value, View
from engine.model.program.operations.kerneled import Emitter, Kerneled, Numbers, part
from engine.model.program.pack import Packer, Product
from engine.model.program.reading import Reading
from engine.model.program.weights import Weight


@dataclass(eq=False)
class PerHead(Kerneled):
    """The product of each head's first columns with the head's own matrix. A head's other columns
    are copied after the result.

    Attributes:
        weight: [heads, out columns, x columns].
    """

    out: Value
    x: View
    weight: Tensor

    @property
    def heads(self) -> int:
        return self.weight.shape[0]

    @property
    def stay(self) -> int:
        """Columns of each head that are copied."""
        return self.x.columns // self.heads - self.weight.shape[2]

    def matrices(self) -> tuple[Weight, ...]:
        """See `Operation.matrices`."""
        return (self.weight,)

    def reads_past(self, multiple: int) -> list[View]:
        """See `Operation.reads_past`."""
        return [self.x]

    def pack(self, packer: Packer) -> tuple[Product, ...]:
        """Pack a product for each head, and remove its weight."""
        heads, columns, width = self.weight.shape
        size = packer.native.packed_size(columns, width)

        def fill(packed: Tensor) -> None:
            for one, matrix in zip(packed.chunk(heads), self.weight, strict=True):
                packer.native.pack_linear(matrix.to(packer.dtype).contiguous(), one)

        packed = packer.pack_always(heads * size, packer.dtype, fill).chunk(heads)
        self.weight = self.weight.new_empty(heads, columns, width, device="meta")
        each = columns + self.stay
        return tuple(
            Product(one, None, None, head * each, columns) for head, one in enumerate(packed)
        )

    def emit(self, to: Emitter, *products: Product) -> None:
        """See `Kerneled.emit`."""
        out, stay = to.place_of(self.out), self.stay
        buffer, column, columns = to.place(self.x)
        each = columns // self.heads
        for head, product in enumerate(products):
            first = column + head * each
            to.program.linear(
                out=part(out, product),
                x=(buffer, first, each - stay),
                weight=product.weight,
                n=product.columns,
                k=each - stay,
            )
            if stay:
                behind = out[0], out[1] + product.column + product.columns, stay
                to.program.elementwise(out=behind, x=(buffer, first + each - stay, stay))

    def compute(self, of: Numbers) -> Tensor:
        """See `Kerneled.compute`."""
        each = of(self.x).reshape(-1, self.heads, self.x.columns // self.heads)
        given, stay = each.tensor_split([self.weight.shape[2]], dim=2)
        made = torch.einsum("thi,hoi->tho", given, self.weight.to(given.dtype))
        return torch.cat((made, stay), dim=2).flatten(1)


def read_per_head(
    reading: Reading, call: Call, output: Tensor, out: Value
) -> list[Operation] | None:
    """The products around attention over latents: of queries, which attention rotates and which
    are read before the model's rotation, and of results.
    """
    target = call.target
    if not isinstance(target, KernelCall) or target.function not in ("absorb", "release"):
        return None
    expansion, given = target.arguments["expansion"], target.arguments["given"]
    if target.function == "release":
        return [PerHead(out, reading.provenance.view(given[0]), expansion.values)]
    x, rotation = reading.rotations.of(given[0], expansion.keys.shape[1])
    each = x.reference.reshape(given[0].shape)
    absorbed = Value(expansion.absorb(each).flatten(1), per_sample=False)
    reading.keep_latent(absorbed, rotation, begin=expansion.keys.shape[2])
    return [PerHead(absorbed, x, expansion.keys.transpose(1, 2).contiguous())]
