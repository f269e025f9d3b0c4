"""Norm: RMSNorm and LayerNorm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from engine.model.program.graph import Value, View
from engine.model.program.operations.kerneled import Emitter, Kerneled, Numbers, wide
from engine.model.program.pack import Product


@dataclass(eq=False)
class Norm(Kerneled):
    """RMSNorm, or LayerNorm if `center`, over each of `groups` parts of a row.

    Attributes:
        weight, bias: [columns / groups] float32.
    """

    may_sample: ClassVar[bool] = True
    out: Value
    x: View
    groups: int
    weight: Tensor | None
    bias: Tensor | None
    eps: float
    center: bool

    def emit(self, to: Emitter, *products: Product) -> None:
        """See `Kerneled.emit`."""
        out, x = to.place_of(self.out), to.place(self.x)
        to.program.norm(out, x, self.groups, self.weight, self.bias, self.eps, self.center)

    def compute(self, of: Numbers) -> Tensor:
        """See `Kerneled.compute`."""
        rows = wide(of(self.x))
        return normal(rows.reshape(len(rows), self.groups, -1), self).flatten(1)


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """The norm of each head of a query or key, after its rotation. Attributes as in `Norm`."""

    weight: Tensor | None
    bias: Tensor | None
    eps: float
    center: bool


def normal(x: Tensor, by: Norm | HeadNorm) -> Tensor:
    """Normalise over the last axis."""
    given = x - x.mean(-1, keepdim=True) if by.center else x
    made = given * torch.rsqrt(given.square().mean(-1, keepdim=True) + by.eps)
    made = made if by.weight is None else made * by.weight
    return made if by.bias is None else made + by.bias
