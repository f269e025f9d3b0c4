"""Draw: chooses a token for each row of logits, by its filters and a number from 0 to 1."""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.native import kernels

IntArray = npt.NDArray[np.int64]

# How many candidates are sorted for top_p before the whole row is. A nucleus is rarely larger.
_NUCLEUS_CANDIDATES = 256
# Weights are summed in float32 within chunks of this size, and chunks are summed in float64. A
# float32 sum over a whole vocabulary loses its tail, and a float64 sum takes 32 ms where this takes
# 1 ms (32 rows of 150,000).
_CHUNK = 128
# e^-104 is 0 in float32.
_FAINTEST = -104.0
# The integer for a weight of 1. The sum of 2^24 of them still fits into 64 bits.
_UNITS = 2.0**38


class Filters(NamedTuple):
    """The sampling filters of each row.

    Attributes:
        temperature: [S] float32; 0 takes the likeliest token, the first of equals.
        top_k: [S] int64, at least 1; vocab_size allows all tokens.
        top_p: [S] float64; 1 allows all tokens.
        min_p: [S] float32; 0 allows all tokens.
        uniform: [S] float64 in [0, 1), the token's position in the distribution function.
    """

    temperature: npt.NDArray[np.float32]
    top_k: IntArray
    top_p: npt.NDArray[np.float64]
    min_p: npt.NDArray[np.float32]
    uniform: npt.NDArray[np.float64]

    def of(self, rows: IntArray) -> Filters:
        """The filters of some rows, by index."""
        return Filters(
            self.temperature[rows],
            self.top_k[rows],
            self.top_p[rows],
            self.min_p[rows],
            self.uniform[rows],
        )


class Draw(Protocol):
    """Applies temperature, top_k, top_p and min_p in this order, then draws once.

    Each filter sets the least logit that a row still allows. The draw inverts the distribution
    function in the order of the vocabulary.
    """

    def __call__(self, logits: Tensor, filters: Filters) -> IntArray:
        """Choose the token of each row.

        Args:
            logits: [S, vocab_size] float32, contiguous; not modified.

        Returns:
            [S] token ids; -1 where a row has a NaN, +inf, or nothing finite.
        """
        ...


def draw_on(device: torch.device) -> Draw:
    """The fastest available `Draw` for logits on this device."""
    native = kernels() if device.type == "cpu" else None
    return KernelDraw(native) if native is not None else TorchDraw()


class KernelDraw:
    """`Draw` by the native kernel, for logits in the processor's memory."""

    def __init__(self, native: ModuleType) -> None:
        self._sample = native.sample

    def __call__(self, logits: Tensor, filters: Filters) -> IntArray:
        tokens = np.empty(len(logits), np.int64)
        self._sample(logits, *filters, tokens)
        return tokens


class TorchDraw:
    """`Draw` by torch, on any device."""

    def __call__(self, logits: Tensor, filters: Filters) -> IntArray:
        top, tokens = logits.max(dim=-1)
        (drawing,) = np.nonzero(filters.temperature)
        if len(drawing):
            rows = torch.from_numpy(drawing).to(logits.device)
            some = logits if len(drawing) == len(logits) else logits[rows]
            tokens[rows] = _draw(some, top[rows], filters.of(drawing))
        chosen: IntArray = tokens.where(top.isfinite(), -1).cpu().numpy()
        return chosen


def _draw(logits: Tensor, top: Tensor, filters: Filters) -> Tensor:
    """Draw a token for each row: [S]. `top` is each row's largest logit; no temperature is 0."""

    def on_device(array: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(logits.device)

    # Each row's largest logit becomes 0, so that division by a temperature does not overflow.
    scaled = (logits - top[:, None]).div_(on_device(filters.temperature)[:, None])
    floor = torch.full_like(top, float("-inf"))

    (rows,) = np.nonzero(filters.top_k < logits.shape[1])
    if len(rows):
        at, sizes = on_device(rows), filters.top_k[rows]
        best = scaled[at].topk(int(sizes.max())).values
        floor[at] = best.gather(1, on_device(sizes - 1)[:, None]).squeeze(1)

    (rows,) = np.nonzero(filters.top_p < 1)
    if len(rows):
        at = on_device(rows)
        floor[at] = _nucleus(scaled[at], floor[at], on_device(filters.top_p[rows]))

    if filters.min_p.any():
        floor = floor.maximum(on_device(filters.min_p).log())

    weights = scaled.masked_fill_(scaled < floor[:, None], float("-inf")).exp_()
    return _invert(weights, on_device(filters.uniform))


def _nucleus(scaled: Tensor, floor: Tensor, top_p: Tensor) -> Tensor:
    """Least logit of each row's nucleus (Holtzman et al., arXiv 1904.09751, section 3.1): [S].

    Args:
        scaled: [S, vocab_size], logits over temperature; the largest of each row is 0.
        floor: [S], the least logit allowed so far.
        top_p: [S] float64.
    """
    weights = scaled.masked_fill(scaled < floor[:, None], float("-inf")).exp_()
    wanted = top_p * _chunk_sums(weights).sum(-1)

    best = scaled.topk(min(_NUCLEUS_CANDIDATES, scaled.shape[1])).values
    mass = best.exp().cumsum(-1, dtype=torch.float64)
    last = (mass < wanted[:, None]).sum(-1, keepdim=True).clamp_(max=best.shape[1] - 1)
    kept = best.gather(1, last).squeeze(1)
    (rows,) = torch.nonzero(mass[:, -1] < wanted, as_tuple=True)
    if len(rows):
        kept[rows] = _least_that_weighs(scaled[rows], weights[rows], top_p[rows])
    return floor.maximum(kept)


def _least_that_weighs(scaled: Tensor, weights: Tensor, top_p: Tensor) -> Tensor:
    """The greatest number of each row such that those at least as large weigh top_p of all: [S].

    It is found as two digits of a radix, in time linear in the vocabulary, unlike a sort. The
    weights are integers here, so that the order in which a GPU adds them does not matter.

    Args:
        scaled: [S, vocab_size], at most 0.
        weights: [S, vocab_size], exp(scaled), or 0.
        top_p: [S] float64.
    """
    # Non-positive floats are ordered by the reverse of the bits of their absolute values. abs also
    # drops a NaN's sign. Nothing below `_FAINTEST` has a weight in float32.
    keys = scaled.clamp(min=_FAINTEST).abs_().view(torch.int32)
    units = weights.double().mul_(_UNITS).long()
    wanted = (top_p * units.sum(-1)).ceil_().long()[:, None]

    def last_digit(sums: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """The index at which running sums reach the target, and the remainder within it."""
        running = sums.cumsum(-1)
        at = (running < wanted).sum(-1, keepdim=True).clamp_(max=sums.shape[1] - 1)
        return at, wanted - (running - sums).gather(1, at)

    rows, low_bits = len(keys), 15
    upper = (keys >> low_bits).long()
    sums = units.new_zeros(rows, 1 << 31 - low_bits).scatter_add_(1, upper, units)
    high, wanted = last_digit(sums, wanted)
    row, place = (upper == high).nonzero(as_tuple=True)
    lower = keys[row, place] & (1 << low_bits) - 1
    sums = units.new_zeros(rows << low_bits)
    sums.scatter_add_(0, (row << low_bits) + lower, units[row, place])
    low, _ = last_digit(sums.view(rows, -1), wanted)
    return -((high << low_bits) + low).squeeze(1).int().view(torch.float32)


def _chunk_sums(weights: Tensor) -> Tensor:
    """Sums of each row over chunks of the vocabulary, the last one shorter: [S, chunks] float64."""
    whole = weights.shape[1] // _CHUNK * _CHUNK
    sums = weights[:, :whole].view(len(weights), whole // _CHUNK, _CHUNK).sum(-1)
    return torch.cat((sums, weights[:, whole:].sum(-1, keepdim=True)), dim=1).double()


def _invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """First token of each row at which the sum of weights passes `uniform` of their total: [S]."""

    def pass_at(parts: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        # The target is below the total, so that rounding cannot choose past the last weight above
        # 0.
        sums = parts.cumsum(-1)
        target = target.minimum(sums[:, -1].nextafter(torch.zeros_like(target)))
        at = torch.searchsorted(sums, target[:, None], right=True).clamp_(max=parts.shape[1] - 1)
        before = (sums - parts).gather(1, at).squeeze(1)
        return at, (target - before).clamp_(min=0)

    sums = _chunk_sums(weights)
    chunk, rest = pass_at(sums, uniform * sums.sum(-1))
    tokens = chunk * _CHUNK + torch.arange(_CHUNK, device=weights.device)
    inside = weights.gather(1, tokens.clamp(max=weights.shape[1] - 1)).double()
    at, _ = pass_at(inside.masked_fill_(tokens >= weights.shape[1], 0), rest)
    return tokens.gather(1, at).squeeze(1)
