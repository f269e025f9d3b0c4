"""An elementwise operation by its definition, and cases for the native and Triton kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st
from torch import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "silu": lambda x: x * torch.sigmoid(x),
    # torch's own loses the digits of its negative side, also in float64.
    "gelu": lambda x: x * torch.special.erfc(-x / math.sqrt(2)) / 2,
    "gelu_tanh": lambda x: x * torch.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": lambda x: x.clamp_min(0),
    "relu2": lambda x: x.clamp_min(0) ** 2,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": torch.nn.functional.softplus,
}


@dataclass(frozen=True, slots=True)
class Case:
    """One call of the operation.

    Attributes:
        gap: what lies between the rows of the matrices, in numbers.
        one_row: whether y is one row that serves for all.
        in_place: whether the result is written over x.
    """

    dtype: torch.dtype
    combine: str
    activation: str
    rows: int
    width: int
    gap: int
    alpha: float
    one_row: bool
    in_place: bool

    def definition(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The exact result in float64, and the size of what was added to make it."""
        if self.combine == "add":
            return x + self.alpha * y, x.abs() + (self.alpha * y).abs()
        activate = ACTIVATIONS[self.activation]
        if self.combine == "none":
            result = activate(self.alpha * x)
        else:
            result = activate(x) * y * self.alpha
        return result, result.abs()


def cases(dtypes: Sequence[torch.dtype], most_columns: int) -> st.SearchStrategy[Case]:
    """Calls on matrices of these types, with up to so many columns."""
    return st.builds(
        Case,
        dtype=st.sampled_from(dtypes),
        combine=st.sampled_from(("none", "add", "multiply")),
        activation=st.sampled_from(tuple(ACTIVATIONS)),
        rows=st.integers(0, 9),
        width=st.integers(1, most_columns),
        gap=st.integers(0, 20),
        alpha=st.sampled_from((1.0, 0.5, -2.0)),
        one_row=st.booleans(),
        in_place=st.booleans(),
    ).map(_possible)


def _possible(case: Case) -> Case:
    return replace(case, activation="none") if case.combine == "add" else case
