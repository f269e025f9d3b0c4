"""Overlapped: decides whether launches overlap: only if a model then decodes the same tokens
faster.

Whether overlap helps depends on driver, GPU and model, so it is tried at start.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import Tensor

from engine.api.config import EngineConfig
from engine.api.errors import cause_of
from engine.api.sampling import SamplingParams
from engine.batch.plan import NewSequence, Row, StepPlan, StepResult
from engine.model.gpu.forward import GpuForward
from engine.model.gpu.inputs import StepSize
from engine.model.gpu.runner import GpuRunner

logger = logging.getLogger(__name__)

# GPUs whose kernels may start before the previous one has ended: Hopper and the Blackwell of data
# centers. On sm_120 their capture was seen to fail (sglang pull request 18596), and a capture that
# fails leaves the allocator of a torch before 2.12 waiting for its end. On neither has it been seen
# to work.
_GENERATIONS = (9, 10)
_LEAST_TORCH = (2, 12)
# Both ways decode this many times, in turns, so that a falling clock rate affects both.
_ROUNDS = 3
# Steps of a round. The second block of a sequence begins among them.
_STEPS = 24


@dataclass(frozen=True, slots=True)
class Decoded:
    """The results of some steps of one row.

    Attributes:
        tokens: the chosen tokens, each of which is the next step's input.
        logits: [vocab_size] float32, of the last step.
        seconds: that the device took for each step.
    """

    tokens: tuple[int, ...]
    logits: Tensor
    seconds: tuple[float, ...]

    def is_same(self, other: Decoded) -> bool:
        """Whether the other steps computed the same to the bit, including NaNs."""
        bits, others = (one.logits.view(torch.int32) for one in (self, other))
        return self.tokens == other.tokens and torch.equal(bits, others)


def overlap_pays(
    decode: Callable[[bool], Decoded],
    capability: tuple[int, int],
    *,
    name: str,
    torch_version: str = torch.__version__,
) -> bool:
    """Whether launches should overlap: they can, they give the same results, and steps are faster.

    Args:
        decode: decodes with overlapping launches if its argument is true, else without.
        capability: of the GPU.
        name: of the model, for messages.
    """
    release = tuple(map(int, torch_version.split(".")[:2]))
    if capability[0] not in _GENERATIONS or release < _LEAST_TORCH:
        return False
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(_ROUNDS):
        plain = decode(False)
        try:
            overlapped = decode(True)
        except Exception as error:
            logger.warning("%s: launches do not overlap: %s", name, cause_of(error))
            return False
        if not overlapped.is_same(plain):
            logger.warning(
                "%s: launches do not overlap, because steps would give something else", name
            )
            return False
        seconds[False] += plain.seconds
        seconds[True] += overlapped.seconds
    before, after = median(seconds[False]), median(seconds[True])
    is_faster = after < before
    logger.info(
        "%s: launches %s; a step of one row takes %.3f ms if they do, else %.3f ms",
        name,
        "overlap" if is_faster else "do not overlap",
        after * 1000,
        before * 1000,
    )
    return is_faster


def decode_alone(
    forward: GpuForward,
    runner_for: Callable[[EngineConfig], GpuRunner],
    envelope: EngineConfig,
    overlaps: bool,
) -> Decoded:
    """Decode one sequence from its first token on, greedily, by a graph of one row.

    Each step reads the token and the cache of the one before, so that a kernel that does not wait
    for another shows.

    Args:
        runner_for: makes a runner for an envelope.
        overlaps: whether the launches overlap; this setting of the forward pass stays afterwards.

    Raises:
        RuntimeError: launches that overlap cannot be captured, or one of them failed.
    """
    forward.overlaps = overlaps
    # A runner also needs space for the token after a step.
    steps = min(_STEPS, max(envelope.max_model_len - 1, 1))
    num_blocks = envelope.blocks_for(steps)
    runner = runner_for(replace(envelope, num_blocks=num_blocks, num_host_blocks=0))
    runner.capture([StepSize(1, 1, chunks=False)])
    if overlaps and not runner.num_graphs:
        raise RuntimeError("their graph cannot be captured")
    first = NewSequence(0, (0,), 1, SamplingParams(temperature=0), 0, (), ())
    results: list[StepResult] = []
    started: deque[object] = deque()
    for start in range(steps):
        block, slot = divmod(start, envelope.block_size)
        samples = start + 1 < envelope.max_model_len
        row = Row(0, start, 1, () if slot else (block,), samples, start == 0)
        plan = StepPlan(start + 1, (row,), new=() if start else (first,))
        started.append(runner.start_step(plan))
        if len(started) == runner.depth:
            results.append(runner.result(started.popleft()))
    results += map(runner.result, started)
    return Decoded(
        tuple(token for one in results for token in one.token_ids),
        forward.logits[0].to("cpu", copy=True),
        tuple(one.times.forward for one in results),
    )
