"""Matrices for tests of kernels: rows apart from each other, and what lies between them watched."""

from __future__ import annotations

import torch
from torch import Tensor

# Relative error of rounding to a dtype (24 and 8 significant bits): any result may be off by that.
ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}
DTYPES = (torch.float32, torch.bfloat16)
_BETWEEN = 12345.0


class Matrix:
    """Normal numbers [rows, width] in a wider buffer; the rest of it must stay as it is.

    Attributes:
        data: the view that a kernel is given.
    """

    def __init__(
        self, rows: int, width: int, dtype: torch.dtype, gap: int = 0, seed: int = 0
    ) -> None:
        self._whole = torch.full((rows, width + gap), _BETWEEN).to(dtype)
        self._width = width
        self.data = self._whole[:, :width]
        generator = torch.Generator().manual_seed(seed)
        self.data.copy_(torch.randn(rows, width, generator=generator))

    @property
    def exact(self) -> Tensor:
        """A copy in float64."""
        return self.data.double()

    def keeps_rest(self) -> bool:
        """Whether nothing was written between the rows."""
        rest = self._whole[:, self._width :]
        return bool((rest == torch.tensor(_BETWEEN).to(rest.dtype)).all())


def assert_within(out: Tensor, exact: Tensor, bound: Tensor | float) -> None:
    """Every number is off by `bound` (float64, as `exact`) at most; and is a number."""
    error = (out.double() - exact).abs()
    excess = error - bound
    assert bool((excess <= 0).all()), f"off by {error.max():.3g}, {excess.max():.3g} too much"
