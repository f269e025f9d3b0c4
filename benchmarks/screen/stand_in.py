"""StandIn: a device beside the processor that computes nothing, and takes so long for each step."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from tokenizers import Tokenizer

from app.process.serving import load_model
from engine.api.client import LoadRequest
from engine.api.config import EngineConfig
from engine.api.telemetry import PhaseTimes
from engine.batch.plan import StepPlan, StepResult
from engine.builtin import MODEL_DIR
from engine.builtin.corpus import chats
from engine.model.attention.base import IntArray
from engine.model.attention.batch import Batch, PackedStep
from engine.serving.loading import LoadedModel, Progress

STEP_SECONDS = 0.004
NAME = "stand-in"
# Of the text that replies are made of: some 40,000 tokens.
_CHATS, _SEED = 1000, 1
# How far apart in that text two sequences begin.
_STRIDE = 997


@dataclass(frozen=True, slots=True)
class _Handle:
    """A step on the device.

    Attributes:
        prepare: seconds that its inputs took.
        ends: monotonic seconds at which the device is done with it.
    """

    step: PackedStep
    prepare: float
    ends: float


class StandIn:
    """A `Runner` (`engine.batch.plan`) that packs inputs as that of a GPU does, and then waits.

    The device takes one step after the other, each for as long. `result` waits outside the
    interpreter's lock, as cudaEventSynchronize does: one call of the system, to a moment that was
    known when the step was started. In the times of a step, `forward` is this wait, and `sample`
    is how late its thread went on: what the system and the lock took.

    Args:
        depth: how many steps may be started before the first one's result is asked for.
        text: token ids that the sequences repeat, each from a place of its own.
        step_seconds: what a step takes.
    """

    def __init__(
        self,
        config: EngineConfig,
        depth: int,
        text: IntArray,
        step_seconds: float = STEP_SECONDS,
    ) -> None:
        self._batch = Batch(config)
        self._depth = depth
        self._text = text
        self._step_seconds = step_seconds
        self._free_at = 0.0

    @property
    def depth(self) -> int:
        return self._depth

    def start_step(self, plan: StepPlan) -> _Handle:
        """Make the inputs of a step, and have the device begin it when the one before is done."""
        started = time.monotonic()
        for seq in plan.released:
            self._batch.release(seq)
        for new in plan.new:
            self._batch.add(new)
        self._batch.extend(plan.rows)
        step = self._batch.pack(plan.rows)
        now = time.monotonic()
        self._free_at = max(self._free_at, now) + self._step_seconds
        return _Handle(step, now - started, self._free_at)

    def result(self, handle: object) -> StepResult:
        """Wait for the device, and read the next tokens of the text."""
        assert isinstance(handle, _Handle)
        asked = time.monotonic()
        wait = max(0.0, handle.ends - asked)
        late = 0.0
        if wait:
            time.sleep(wait)
            late = time.monotonic() - handle.ends
        step = handle.step
        token_ids = self._text[(step.sampling * _STRIDE + step.lengths) % len(self._text)]
        self._batch.append(step, token_ids)
        times = PhaseTimes(handle.prepare, forward=wait, sample=late)
        return StepResult(tuple(token_ids.tolist()), times)


def load(
    request: LoadRequest,
    progress: Progress,
    *,
    depth: int,
    context: int,
    sessions: int,
    step_seconds: float,
) -> LoadedModel:
    """Load the built-in model, with its tokenizer and all that comes into a process by it, and have
    a device compute that is none.

    Args:
        depth: of the device.
        context: the most tokens of prompt and reply.
        sessions: for how many of these the pool has room.
        step_seconds: what a step of the device takes.
    """
    model = load_model(replace(request, num_blocks=None, max_model_len=None), progress)
    blocks = model.config.blocks_for(context)
    config = replace(model.config, num_blocks=sessions * blocks + 64, max_model_len=context)
    # The interface spares the cores of a model that computes on them.
    config = replace(config, device=NAME)
    card = replace(model.card, name=NAME, device=NAME, max_model_len=context)
    knobs = replace(model.knobs, max_num_seqs=sessions)
    runner = StandIn(config, depth, _text(), step_seconds)
    return replace(model, config=config, card=card, knobs=knobs, runner=runner)


def _text() -> IntArray:
    """The token ids of what the built-in model was trained to say."""
    replies = [reply for chat in islice(chats(_SEED), _CHATS) for _, reply in chat.exchanges]
    tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    return np.array(tokenizer.encode("\n\n".join(replies)).ids, dtype=np.int64)
