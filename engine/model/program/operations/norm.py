"""Norm: RMSNorm and LayerNorm."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.model.program.graph import Value, View
from engine.model.program.operations.kerneled import Kerneled


@dataclass(eq=False)
class Norm(Kerneled):
    """RMSNorm, or LayerNorm if `center`, over each of `groups` parts of a row.

    Attributes:
        weight, bias: [columns / groups] float32.
    """

    out: Value
    x: View
    groups: int
    weight: Tensor | None
    bias: Tensor | None
    eps: float
    center: bool


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """The norm of each head of a query or key, after its rotation. Attributes as in `Norm`."""

    weight: Tensor | None
    bias: Tensor | None
    eps: float
    center: bool
