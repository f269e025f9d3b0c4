"""agree: whether a guess reproduces the recorded numbers."""

from __future__ import annotations

import torch
from torch import Tensor

# The largest differences that rounding explains.
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 5e-3}


def differences(got: Tensor, expected: Tensor) -> Tensor:
    """The norm of each row's difference over the norm of its expected value: [rows] float64.

    Each row counts by itself, because one wrong row is an error. One norm over all rows would hide
    it: in many models the first token's numbers are a hundred times as large as those of all others
    together.
    """
    expected = expected.double()
    norms = expected.norm(dim=-1).clamp(min=1e-30)
    quotients: Tensor = (got.double() - expected).norm(dim=-1) / norms
    return quotients


def agree(got: Tensor, recorded: Tensor) -> bool:
    """Whether numbers equal the recorded ones, except for rounding in the recorded ones' type."""
    tolerance = _TOLERANCE.get(recorded.dtype, 0.0)
    return bool((differences(got, recorded) <= tolerance).all())
