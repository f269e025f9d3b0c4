"""Paced: a model that takes the same time for every step, as if on a GPU, and computes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from zlib import crc32

from engine.api.client import ChatMessage, LoadRequest
from engine.api.config import BLOCK_SIZE, EngineConfig
from engine.api.errors import InvalidRequestError
from engine.api.knobs import Knobs
from engine.api.sampling import SamplingParams
from engine.api.status import EnginePhase, ModelCard
from engine.api.stream import Context
from engine.batch.plan import StepPlan, StepResult
from engine.serving.host import EngineHost
from engine.serving.loading import LoadedModel, Progress
from engine.simulation.shapes import SHAPES
from engine.text.arguments import NO_ARGUMENTS

NAME = "paced"
WAIT_SECONDS = 60.0
BUDGET = 4096
# A start that comes later than this after a step has found the device idle. One that comes sooner
# was only delayed by the host's work between two steps.
_LATE_SECONDS = 0.005
# All replies repeat this text. It has 4.8 bytes a token, about as many as English.
TEXT = (
    "the batch goes on while each new request waits for the step to end and then takes part in"
    " the next one with all of its prompt at once so that nobody stands still for long"
)
_WORDS = tuple(f"{word} " for word in TEXT.split())


def reply(num_tokens: int) -> str:
    """The text of a reply of so many tokens."""
    return "".join(_WORDS[i % len(_WORDS)] for i in range(num_tokens))


class PacedRunner:
    """Ends each step `step_seconds` after the one before, or after its start if that came later.

    Token i of a reply is i, whatever the prompt is.
    """

    depth = 1

    def __init__(self, step_seconds: float) -> None:
        self._step_seconds = step_seconds
        self._end = 0.0
        self._prompts: dict[int, int] = {}

    def start_step(self, plan: StepPlan) -> StepPlan:
        now = time.monotonic()
        if now - self._end > _LATE_SECONDS:
            self._end = now
        self._end += self._step_seconds
        for seq in plan.released:
            self._prompts.pop(seq, None)
        self._prompts.update((new.seq, new.num_prompt_tokens) for new in plan.new)
        return plan

    def result(self, handle: object) -> StepResult:
        assert isinstance(handle, StepPlan)
        time.sleep(max(0.0, self._end - time.monotonic()))
        return StepResult(
            tuple(
                (row.start + row.count - self._prompts[row.seq]) % len(_WORDS)
                for row in handle.rows
                if row.samples
            )
        )


class _WordDetokenizer:
    def push(self, token_id: int) -> str:
        return _WORDS[token_id]

    def flush(self) -> str:
        return ""


class WordCodec:
    """A chat codec, as the engine's text thread uses one, in which each token is a word."""

    model_key = NAME
    turn_stops = ()

    def encode(
        self,
        messages: Sequence[ChatMessage],
        context: Context | None,
        arguments: Mapping[str, object] = NO_ARGUMENTS,
    ) -> list[int]:
        return [
            crc32(word.encode()) % 30_000
            for message in messages
            for word in message.content.split()
        ]

    def common_prefix(
        self, messages: Sequence[ChatMessage], arguments: Mapping[str, object] = NO_ARGUMENTS
    ) -> list[int]:
        return self.encode(messages, None, arguments)

    def check_size(self, size: int, max_model_len: int) -> None:
        pass

    def check_count(self, count: int, max_model_len: int) -> None:
        pass

    def check_token_ids(self, token_ids: Sequence[int], param: str) -> None:
        if token_ids:
            raise InvalidRequestError(f"{param} is set; this model takes no token ids", param)

    def detokenizer(self) -> _WordDetokenizer:
        return _WordDetokenizer()

    def special_name(self, token_id: int) -> str:
        return ""

    def parts(self, prompt: Sequence[int], arguments: Mapping[str, object] | None) -> None:
        """There is no thinking in these words."""

    def is_open(self, prompt: Sequence[int], arguments: Mapping[str, object] | None) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class PacedLoader:
    """Loads the model at once.

    Args:
        step_seconds: how long every step takes.
        max_num_seqs: most sequences in a step.
        max_model_len: most tokens of one sequence. The pool has room for so many of each.
    """

    step_seconds: float
    max_num_seqs: int
    max_model_len: int

    def __call__(self, request: LoadRequest, progress: Progress) -> LoadedModel:
        blocks = self.max_num_seqs * -(-self.max_model_len // BLOCK_SIZE)
        return LoadedModel(
            key=NAME,
            card=ModelCard(
                *(NAME, "", 0, "bfloat16", "cpu", "none", self.max_model_len, 0, 0),
                sampling=SamplingParams(temperature=0.0),
            ),
            config=EngineConfig(
                num_blocks=blocks + blocks // 50,
                max_model_len=self.max_model_len,
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=BUDGET,
            ),
            shape=SHAPES["387m"],
            runner=PacedRunner(self.step_seconds),
            codec=WordCodec(),  # type: ignore[arg-type]
            knobs=Knobs(
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=BUDGET,
                queue_limit=100_000,
            ),
            eos_token_ids=frozenset(),
            close=lambda: None,
        )


@contextmanager
def loaded(loader: PacedLoader) -> Iterator[EngineHost]:
    """An engine host that serves the model."""
    host = EngineHost(loader)
    try:
        host.load(LoadRequest(NAME))
        wait_for(lambda: host.status().phase is EnginePhase.READY, "the model loaded")
        yield host
    finally:
        host.shutdown()


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Wait for what must come to be.

    Raises:
        TimeoutError: it does not within a minute.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not in {WAIT_SECONDS:.0f} s")
        time.sleep(0.005)
