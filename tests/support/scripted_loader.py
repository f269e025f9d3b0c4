"""Loader: models for a host whose runners are scripted and whose text is numbers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.api.client import ChatMessage, LoadRequest
from engine.api.config import EngineConfig
from engine.api.errors import InvalidRequestError
from engine.api.knobs import Knobs
from engine.api.sampling import SamplingParams
from engine.api.status import ModelCard
from engine.api.stream import Context
from engine.api.tools import ToolUse
from engine.batch.plan import StepPlan
from engine.serving.loading import LoadedModel, Progress
from engine.text.arguments import NO_ARGUMENTS
from tests.support.harness import EOS, SHAPE
from tests.support.scripted_runner import VOCAB, ScriptedRunner

TIMEOUT = 30.0


class WordDetokenizer:
    def __init__(self, name: str) -> None:
        self._name = name

    def push(self, token_id: int) -> str:
        return f"{self._name}{token_id} "

    def flush(self) -> str:
        return ""


@dataclass
class WordCodec:
    """A chat of numbers: each word is a token id. Replies say which model they come from.

    Attributes:
        before_encode: called on the text thread with the messages.
        arguments: of the chat template, of each prompt; `refused` among them refuses it.
        read_calls: called on a thread of `Encodings` when a reply has ended.
    """

    model_key: str
    before_encode: Callable[[Sequence[ChatMessage]], None] = lambda messages: None
    arguments: list[Mapping[str, object]] = field(default_factory=list)
    read_calls: Callable[..., ToolUse | None] = lambda *_, **__: None

    def encode(
        self,
        messages: Sequence[ChatMessage],
        context: Context | None,
        arguments: Mapping[str, object] = NO_ARGUMENTS,
    ) -> list[int]:
        self.before_encode(messages)
        self.arguments.append(arguments)
        if "refused" in arguments:
            raise InvalidRequestError("the chat template refuses it", "messages")
        if not messages[-1].content:
            raise InvalidRequestError("the prompt is empty", "prompt")
        return [int(word) for message in messages for word in message.content.split()]

    def encode_text(self, text: str, *, is_whole: bool) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, token_ids: Sequence[int]) -> str:
        return " ".join(map(str, token_ids))

    def utf8(self, token_id: int) -> bytes:
        return b"%d" % token_id

    def common_prefix(
        self, messages: Sequence[ChatMessage], arguments: Mapping[str, object] = NO_ARGUMENTS
    ) -> list[int]:
        return self.encode(messages, None, arguments)

    def check_size(self, size: int, max_model_len: int) -> None:
        pass

    def check_count(self, count: int, max_model_len: int) -> None:
        pass

    def check_token_ids(self, token_ids: Sequence[int], param: str) -> None:
        if any(not 0 <= token_id < VOCAB for token_id in token_ids):
            raise InvalidRequestError(f"{param} is out of range", param)

    def detokenizer(self) -> WordDetokenizer:
        return WordDetokenizer(self.model_key)

    def special_name(self, token_id: int) -> str:
        return ""

    turn_stops = ()

    def parts(self, prompt: Sequence[int], arguments: Mapping[str, object] | None) -> None:
        """There is no thinking in numbers."""

    def is_open(self, prompt: Sequence[int], arguments: Mapping[str, object] | None) -> bool:
        return False

    def certain_text(self, tools: Sequence[Mapping[str, object]]) -> None:
        """Nor does anything in them mark a call."""


@dataclass
class Loader:
    """A model loader whose models are scripted.

    Attributes:
        calls: models asked for.
        closed: models closed.
        runners, codecs: of each model, the last that was loaded.
        gates: a model's loading waits for its gate.
        entered: set when a model with a gate is being loaded.
        deaf: models that finish loading without a look at whether they are still wanted.
        failures: what loading a model raises.
        before_step: called on the engine thread before every step of any model.
        device: where the models compute, as they say.
    """

    depth: int = 1
    before_step: Callable[[StepPlan], None] | None = None
    calls: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    runners: dict[str, ScriptedRunner] = field(default_factory=dict)
    codecs: dict[str, WordCodec] = field(default_factory=dict)
    gates: dict[str, threading.Event] = field(default_factory=dict)
    entered: threading.Event = field(default_factory=threading.Event)
    deaf: set[str] = field(default_factory=set)
    failures: dict[str, Exception] = field(default_factory=dict)
    knobs: dict[str, object] = field(default_factory=dict)
    knob_notes: dict[str, str] = field(default_factory=dict)
    device: str = "cpu"

    def __call__(self, request: LoadRequest, progress: Progress) -> LoadedModel:
        name = request.model
        self.calls.append(name)
        progress("weights", 1, 2)
        if name in self.gates:
            self.entered.set()
            assert self.gates[name].wait(TIMEOUT)
        if name in self.failures:
            raise self.failures[name]
        if name not in self.deaf:
            progress("weights", 2, 2)
        config = EngineConfig(
            num_blocks=64,
            block_size=4,
            max_model_len=64,
            max_num_seqs=8,
            max_num_batched_tokens=64,
            device=self.device,
        )
        runner = ScriptedRunner(config, self.depth, on_step=self._step)
        self.runners[name] = runner
        codec = self.codecs.setdefault(name, WordCodec(name))

        def close() -> None:
            assert not runner._queue, "steps are in flight"
            self.closed.append(name)

        start = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "watermark": 0.0}
        return LoadedModel(
            key=name,
            card=ModelCard(
                *(name, "Scripted", 1000, "float32", "cpu", "none", 64, 4000, 64),
                sampling=SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True),
                sampling_sources={"temperature": "models.toml"},
            ),
            config=config,
            shape=SHAPE,
            runner=runner,
            codec=codec,  # type: ignore[arg-type]
            knobs=Knobs(**(start | self.knobs)),  # type: ignore[arg-type]
            eos_token_ids=frozenset({EOS}),
            close=close,
            knob_notes=self.knob_notes,
        )

    def _step(self, plan: StepPlan) -> None:
        if self.before_step is not None:
            self.before_step(plan)

    def gate(self, name: str) -> threading.Event:
        self.entered.clear()
        return self.gates.setdefault(name, threading.Event())


class Turnstile:
    """Lets steps through one at a time.

    Attributes:
        reached: released each time the engine thread stands before a step.
    """

    def __init__(self) -> None:
        self.reached = threading.Semaphore(0)
        self._passes = threading.Semaphore(0)
        self._open = False

    def __call__(self, plan: StepPlan) -> None:
        self.reached.release()
        if not self._open:
            assert self._passes.acquire(timeout=TIMEOUT)

    def wait(self) -> None:
        assert self.reached.acquire(timeout=TIMEOUT)

    def let_one(self) -> None:
        self._passes.release()

    def open(self) -> None:
        self._open = True
        self._passes.release()
