"""agree: whether a guess gives the recorded numbers."""

from __future__ import annotations

import torch
from torch import Tensor

# Differences by rounding.
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


def differences(got: Tensor, expected: Tensor) -> Tensor:
    """Of each row: the norm of the difference as a quotient of the norm of what is expected.

    By row, for what holds for all but one of them is wrong, and one token's numbers, the first's in
    many models, are a hundred times as large as those of all others together.
    """
    expected = expected.double()
    norms = expected.norm(dim=-1).clamp(min=1e-30)
    quotients: Tensor = (got.double() - expected).norm(dim=-1) / norms
    return quotients


def agree(got: Tensor, recorded: Tensor) -> bool:
    """Whether numbers are the recorded ones but for the rounding of the recorded ones' type."""
    tolerance = _TOLERANCE.get(recorded.dtype, 0.0)
    return bool((differences(got, recorded) <= tolerance).all())
