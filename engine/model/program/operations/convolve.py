"""Convolve: a causal convolution of each column."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.model.program.graph import Value, View
from engine.model.program.operations.kerneled import Kerneled


@dataclass(eq=False)
class Convolve(Kerneled):
    """Activation of a causal convolution of each column with its own weights.

    A sequence's state is the last inputs of each column.

    Attributes:
        weight: [taps, columns] float32, the newest token's tap last.
        bias: [columns] float32.
    """

    out: Value
    x: View
    weight: Tensor
    bias: Tensor | None
    activation: str
