"""Framed matrices, and programs in another order, for tests of Triton kernels.

On a GPU: `BATCHDECK_TEST_DEVICE=cuda pytest tests/engine/triton`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

DEVICE = torch.device(os.environ.get("BATCHDECK_TEST_DEVICE", "cpu"))
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Relative error of rounding to a dtype (24, 11 and 8 significant bits). The interpreter cuts off
# what bfloat16 does not hold, which is twice as far off as rounding.
ROUNDING = {
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8 * (2 if DEVICE.type == "cpu" else 1),
}
# Beyond a dtype's rounding: the smallest float16 apart from 0 is 6e-8.
LEAST = 1e-7


class Framed:
    """Normal numbers [rows, width] in a wider buffer of one number, which must stay that.

    NaNs show up in results if they are read, but a number shows better that it was written over.

    Attributes:
        data: the view that a kernel is given.
        exact: a copy in float64.
    """

    def __init__(
        self,
        rows: int,
        width: int,
        dtype: torch.dtype,
        *,
        gap: int = 0,
        seed: int = 0,
        frame: float = torch.nan,
    ) -> None:
        self._frame = torch.tensor(frame).to(DEVICE, dtype)
        whole = torch.full((rows + 2, width + 2 * gap), frame)
        generator = torch.Generator().manual_seed(seed)
        whole[1 : rows + 1, gap : gap + width] = torch.randn(rows, width, generator=generator)
        self._whole = whole.to(DEVICE, dtype)
        self.data = self._whole[1 : rows + 1, gap : gap + width]
        self.exact = self.data.double()

    def keeps_frame(self) -> bool:
        """Whether nothing was written around the matrix."""
        rest = self._whole.clone()
        rows, columns = self.data.shape
        gap = (rest.shape[1] - columns) // 2
        rest[1 : rows + 1, gap : gap + columns] = self._frame
        return torch.allclose(rest, self._frame.expand_as(rest), 0, 0, equal_nan=True)


def within(out: Tensor, exact: Tensor, bound: Tensor | float) -> None:
    """Every number is off by its dtype's rounding and by `bound` at most; and is a number."""
    error = (out.double() - exact).abs()
    excess = error - ROUNDING[out.dtype] * exact.abs() - LEAST - bound
    assert bool((excess <= 0).all()), f"off by {error.max():.3g}, {excess.max():.3g} too much"


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers in float32."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(DEVICE)


@contextmanager
def in_any_order(seed: int) -> Iterator[None]:
    """Have the interpreter run programs in a random order. It runs one after the other, and would
    not show otherwise that they depend on it.
    """
    from triton.runtime.interpreter import interpreter_builder

    place = interpreter_builder.set_grid_idx

    def elsewhere(*index: int) -> None:
        grid = interpreter_builder.grid_dim
        order = np.random.default_rng(seed).permutation(int(np.prod(grid)))
        at = order[np.ravel_multi_index(index, grid)]
        place(*map(int, np.unravel_index(at, grid)))

    with patch.object(interpreter_builder, "set_grid_idx", elsewhere):
        yield
