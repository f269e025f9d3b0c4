"""Gating: how an expert combines its gate and its up, determined by trial."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.program.activations import ACTIVATIONS

# Columns of a trial, half of them gates.
_COLUMNS = 8
# Beyond any limit.
_FAR = 1e6

Gate = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Gating:
    """activation(min(gate, limit)) * (up within [-limit, limit], + shift).

    Attributes:
        interleaved: whether gates and ups alternate, rather than all gates before all ups.
    """

    interleaved: bool
    activation: str
    limit: float = math.inf
    shift: float = 0.0

    def split(self, fused: Tensor) -> tuple[Tensor, Tensor]:
        """Split [experts, features] or [experts, features, columns] into gates and ups."""
        if self.interleaved:
            return fused[:, ::2], fused[:, 1::2]
        gate, up = fused.chunk(2, 1)
        return gate, up

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return ACTIVATIONS[self.activation](gate) * (up + self.shift)


def guess_gating(function: Gate) -> Gating | None:
    """The gating that a function of [rows, gates and ups] computes, if kernels have it."""
    for interleaved in (False, True):
        found = _guess(function, interleaved)
        if found is not None:
            return found
    return None


def _guess(function: Gate, interleaved: bool) -> Gating | None:
    def of(gate: Tensor, up: Tensor) -> Tensor:
        sides = [side[:, None].expand(-1, _COLUMNS // 2) for side in (gate, up)]
        rows = torch.stack(sides, -1).flatten(1) if interleaved else torch.cat(sides, -1)
        with torch.inference_mode():
            given = function(rows)
        if given.shape != sides[0].shape or not given.eq(given[:, :1]).all():
            return torch.full_like(gate, math.nan)
        return given[:, 0]

    def number(gate: float, up: float) -> float:
        return float(of(*(torch.tensor([side], dtype=torch.float64) for side in (gate, up)))[0])

    try:
        none, one, far, farther = (number(1, up) for up in (0, 1, _FAR, 2 * _FAR))
        factor = one - none
        shift = none / factor if factor else math.nan
        limit = far / factor - shift if factor and far == farther else math.inf
        gates = torch.linspace(-50, 50, 1001, dtype=torch.float64)
        trials = [(gates, torch.full_like(gates, up)) for up in (-30.0, -1.5, 0.0, 1.0, 2.5, 30.0)]
        given = torch.cat([of(*trial) for trial in trials])
    except Exception:  # it is not a function of these inputs
        return None
    for name in ACTIVATIONS:
        gating = Gating(interleaved, name, round(limit, 6), round(shift, 6))
        got = torch.cat([gating(*trial) for trial in trials])
        if torch.allclose(got, given, 1e-6, 1e-6):
            return gating
    return None
