"""Ladder: the sizes of steps that are captured as CUDA graphs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from engine.api.config import EngineConfig
from engine.model.gpu.inputs import StepSize

# A step of decodes is padded to the next of these sizes, and above them to a multiple of the last
# distance between two of them. More sizes would cost memory and time at start, fewer would pad
# more.
_FEW = (1, 2, 4, 8)
_STEP = 8
# Steps with prompts are padded to the next of these sizes. Larger steps take the GPU longer than
# the host, so that a graph would save nothing.
_MIXED = (64, 128, 256, 512, 1024)
# In most steps with prompts only few rows sample, and the head is a large product.
_FEW_SAMPLES = 32


def ladder(config: EngineConfig) -> list[StepSize]:
    """The sizes to capture in this envelope, the largest first.

    The largest come first because the graphs share their memory, which the first one then takes.
    """
    most = config.max_num_seqs
    decodes = sorted({size for size in (*_FEW, *range(_STEP, most, _STEP)) if size < most} | {most})
    sizes = {StepSize(size, size, chunks=False) for size in decodes}
    for tokens in _MIXED:
        if tokens <= config.max_num_batched_tokens:
            for samples in {min(tokens, most, _FEW_SAMPLES), min(tokens, most)}:
                sizes.add(StepSize(tokens, samples, chunks=True))
    return sorted(sizes, key=_cost, reverse=True)


class Rungs:
    """Finds the smallest size into which a step fits."""

    def __init__(self, sizes: Iterable[StepSize]) -> None:
        self._sizes = sorted(sizes, key=_cost)
        self._tokens = [size.tokens for size in self._sizes]

    def fit(self, step: StepSize) -> StepSize | None:
        """The smallest size into which `step` fits; None if there is none."""
        for size in self._sizes[bisect_left(self._tokens, step.tokens) :]:
            if size.samples >= step.samples and size.chunks >= step.chunks:
                return size
        return None


def _cost(size: StepSize) -> tuple[int, int, bool]:
    return size.tokens, size.samples, size.chunks
