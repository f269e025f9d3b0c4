"""agree: whether a guess gives the recorded numbers."""

from __future__ import annotations

import torch
from torch import Tensor

# Differences by rounding, as quotients of norms: a guess is off by some tenths or it is right.
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def agree(got: Tensor, recorded: Tensor) -> bool:
    """Whether numbers are the recorded ones but for the rounding of the recorded ones' type."""
    expected = recorded.double()
    tolerance = _TOLERANCE.get(recorded.dtype, 0.0)
    return bool((got - expected).norm() <= tolerance * expected.norm())
