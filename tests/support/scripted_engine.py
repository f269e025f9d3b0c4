"""ScriptedEngine: the real core behind an EngineClient, whose replies are given, and whose time
passes when told to.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from engine.api.client import ChatMessage, LoadRequest, Submission
from engine.api.config import EngineConfig
from engine.api.errors import EngineError, ErrorInfo, UnavailableError
from engine.api.knobs import Knobs
from engine.api.lifecycle import FinishReason
from engine.api.sampling import SamplingParams
from engine.api.snapshot import Snapshot
from engine.api.status import EnginePhase, EngineStatus, ModelCard
from engine.api.stream import Context, Delta, Finish, RequestStream
from engine.api.telemetry import StepRecord
from engine.batch.output import End, TokenOutput
from engine.batch.shape import ModelShape
from engine.core.admission import check_priority
from engine.core.core import EngineCore
from engine.scheduling.policies import policy_names
from tests.support.clock import VirtualClock
from tests.support.scripted_runner import ScriptedRunner

POLICIES = policy_names()
CONFIG = EngineConfig(
    num_blocks=256, max_model_len=1024, max_num_seqs=32, max_num_batched_tokens=512
)
SHAPE = ModelShape(
    num_params=2_000_000,
    num_active_params=1_500_000,
    hidden_size=128,
    vocab_size=65_536,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    value_dim=32,
    windows=(None,) * 4,
    dtype_bytes=4,
)
MODEL_KEY = "scripted@1:float32"


def echo(submission: Submission) -> str:
    return f"You said: {submission.messages[-1].content}"


class _Vocabulary:
    """Words as token ids. A token is a word with the blanks before it."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._texts: list[str] = []

    def id(self, word: str, text: str = "") -> int:
        """The id of a word as it is told apart, which reads as `text`."""
        if word not in self._ids:
            self._ids[word] = len(self._texts)
            self._texts.append(text)
        return self._ids[word]

    def of_message(self, message: ChatMessage) -> list[int]:
        words = (f"<{message.role}>", *message.content.split(), "<end>")
        return [self.id(word) for word in words]

    def of_reply(self, reply: str) -> list[int]:
        """The ids that are sampled: unlike those of the same words as text, so that a lost context
        shows, and the last one unlike the same word before it, so that it can end the reply.
        """
        words = re.findall(r"\s*\S+\s*$|\s*\S+", reply) or [""]
        ids = [self.id(f"sampled {word}", word) for word in words[:-1]]
        return [*ids, self.id(f"last {words[-1]}", words[-1])]

    def text(self, token_ids: tuple[int, ...]) -> str:
        return "".join(self._texts[token_id] for token_id in token_ids)


@dataclass(slots=True, eq=False)
class _Chat:
    """A request that has not ended."""

    submission: Submission
    stream: RequestStream
    prompt: tuple[int, ...]
    script: list[int]
    sampling: SamplingParams
    arrival: float


class _DrivingStream(RequestStream):
    """A stream whose reader advances the engine instead of waiting for another thread to."""

    def __init__(self, request_id: str, wake: Callable[[], None] | None, engine: ScriptedEngine):
        super().__init__(request_id, wake)
        self._engine = engine

    def wait(self, timeout: float | None = None) -> bool:
        while not super().wait(0):
            if not self._engine.advance():
                assert timeout is not None, "this stream will never have news"
                return False
        return True


class ScriptedEngine:
    """Gives each request the tokens of its scripted reply, planned and accounted for by the core.

    No thread is started, and the clock moves by `step_seconds` a step. Refusals and ends by others
    than a step are told at once.

    Args:
        replies: by the text of the last message; what is missing is echoed. Or a function.
        drives_itself: waiting for a stream advances the engine, for readers that block.
        loaded: whether a model is there from the start; else call `load` and `ready`.

    Attributes:
        submissions: all that came, refused ones too.
        prompts: token ids by request id, of requests that could be read.
        clock: seconds since the start.
    """

    def __init__(
        self,
        replies: Mapping[str, str] | Callable[[Submission], str] = echo,
        *,
        config: EngineConfig = CONFIG,
        knobs: Knobs | None = None,
        step_seconds: float = 0.02,
        drives_itself: bool = False,
        loaded: bool = True,
    ) -> None:
        self._replies = replies
        self._config = config
        self._first_knobs = knobs or Knobs()
        self._step_seconds = step_seconds
        self._drives_itself = drives_itself
        self.clock = VirtualClock(0.0)
        self._lock = threading.RLock()
        self._status = EngineStatus(EnginePhase.EMPTY)
        self._loading: LoadRequest | None = None
        self._vocabulary = _Vocabulary()
        self._core: EngineCore | None = None
        self._runner = self._new_runner()
        # Those that wait for a model are in no core.
        self._chats: dict[str, _Chat] = {}
        self._pending: dict[str, _Chat] = {}
        self._pins: dict[str, tuple[ChatMessage, ...]] = {}
        self._wakes: dict[Callable[[], None], None] = {}
        self.submissions: list[Submission] = []
        self.prompts: dict[str, tuple[int, ...]] = {}
        self.loads: list[LoadRequest] = []
        if loaded:
            self.load(LoadRequest("scripted"))
            self.ready()

    # What a front end may call.

    def submit(
        self, submission: Submission, wake: Callable[[], None] | None = None
    ) -> RequestStream:
        request_id = submission.request_id
        stream = (
            _DrivingStream(request_id, wake, self)
            if self._drives_itself
            else RequestStream(request_id, wake)
        )
        with self._lock:
            self.submissions.append(submission)
            try:
                chat = self._read(submission, stream)
            except EngineError as error:
                stream.end_unserved(FinishReason.ERROR, error.info())
            else:
                if self._loading is None:
                    self._admit(chat)
                else:
                    self._pending[request_id] = chat
        self._wake()
        return stream

    def abort(self, request_id: str) -> None:
        with self._lock:
            chat = self._pending.pop(request_id, None)
            if chat is not None:
                chat.stream.end_unserved(FinishReason.ABORT)
            elif self._core is not None:
                self._core.abort(request_id)
                self._deliver(self._core)
        self._wake()

    def set_priority(self, request_id: str, priority: int) -> None:
        check_priority(priority)
        with self._lock:
            chat = self._pending.get(request_id)
            if chat is not None:
                chat.submission = replace(chat.submission, priority=priority)
            elif self._core is not None:
                self._core.set_priority(request_id, priority)

    def status(self) -> EngineStatus:
        return self._status

    def snapshot(self) -> Snapshot | None:
        with self._lock:
            serves = self._loading is None or self._status.phase is EnginePhase.DRAINING
            return self._core.snapshot() if serves and self._core is not None else None

    def step_records(self, since: int) -> tuple[StepRecord, ...]:
        return self._core.records.since(since) if self._core is not None else ()

    def set_knobs(self, changes: Mapping[str, object], who: str) -> Knobs:
        with self._lock:
            return self._serving().change_knobs(changes, who)

    def undo_knobs(self, who: str) -> Knobs:
        with self._lock:
            return self._serving().undo_knobs(who)

    def pin(self, name: str, messages: tuple[ChatMessage, ...]) -> None:
        with self._lock:
            self._pins[name] = messages
            if self._core is not None:
                self._pin(self._core, name)

    def unpin(self, name: str) -> None:
        with self._lock:
            if self._pins.pop(name, None) is not None and self._core is not None:
                self._core.pins.unpin(name)

    def load(self, request: LoadRequest) -> None:
        with self._lock:
            self.loads.append(request)
            self._loading = request
            number = self._core.snapshot().num_running if self._core is not None else 0
            if number:
                who = "1 request ends" if number == 1 else f"{number} requests end"
                detail = f"{who} before {request.model} is loaded"
                self._status = replace(self._status, phase=EnginePhase.DRAINING, detail=detail)
            else:
                self._status = EngineStatus(EnginePhase.LOADING, request.model, "reading weights")

    def shutdown(self) -> None:
        with self._lock:
            self._end_all(UnavailableError("the engine is shutting down"))
            self._status = EngineStatus(EnginePhase.STOPPED)
        self._wake()

    # What a test tells it.

    def progress(self, loaded_bytes: int, total_bytes: int) -> None:
        """Loading got this far."""
        model = self._status.model
        detail = "reading weights"
        self._status = EngineStatus(EnginePhase.LOADING, model, detail, loaded_bytes, total_bytes)

    def ready(self) -> None:
        """Loading succeeded. What ran on the model before has ended; what waited goes to this."""
        with self._lock:
            assert self._loading is not None, "nothing is being loaded"
            waiting = self._withdraw_waiting()
            self._end_running(UnavailableError("the model was unloaded"))
            self._core = self._new_core(self._loading.model)
            for name in self._pins:
                self._pin(self._core, name)
            self._status = EngineStatus(EnginePhase.READY, self._loading.model)
            self._loading = None
            pending, self._pending = self._pending, {}
            for chat in (*waiting, *pending.values()):
                self._admit(chat)
        self._wake()

    def fail(self, detail: str) -> None:
        """Loading failed."""
        with self._lock:
            self._status = EngineStatus(EnginePhase.FAILED, self._status.model, detail)
            self._end_all(UnavailableError(detail))
        self._wake()

    def crash(self, detail: str, *, tells: bool = True) -> None:
        """A thread has ended; without `tells` it hangs, and nobody gets an ending."""
        if tells:
            self.fail(detail)
        self._status = EngineStatus(
            EnginePhase.FAILED, self._status.model, detail, has_crashed=True
        )

    def advance(self, steps: int = 1) -> int:
        """Run up to `steps` steps, one token for each decoding request; returns how many ran."""
        for done in range(steps):
            with self._lock:
                ran = self._loading is None and self._core is not None and self._step(self._core)
            self._wake()
            if not ran:
                return done
        return steps

    def finish_all(self) -> None:
        """Run until nothing is left that can run."""
        while self.advance():
            pass

    def break_request(self, request_id: str, message: str) -> None:
        """End one request with an error."""
        with self._lock:
            core = self._serving()
            request = core._roster.live[request_id]
            core._roster.end(request, FinishReason.ERROR, EngineError(message).info())
            self._deliver(core)
        self._wake()

    # How it does it.

    def _new_runner(self) -> ScriptedRunner:
        return ScriptedRunner(self._config, 1, self.clock, self._step_seconds)

    def _new_core(self, model: str) -> EngineCore:
        self._runner = self._new_runner()
        config = self._config
        card = ModelCard(
            name=model,
            architecture="ScriptedForCausalLM",
            num_params=SHAPE.num_params,
            dtype=config.dtype,
            device=config.device,
            attention="scripted",
            max_model_len=config.max_model_len,
            weight_bytes=SHAPE.weight_bytes,
            kv_bytes_per_token=SHAPE.kv_bytes_per_token,
        )
        return EngineCore(
            config=config,
            runner=self._runner,
            shape=SHAPE,
            card=card,
            key=MODEL_KEY,
            eos_token_ids=frozenset(),
            knobs=self._first_knobs,
            clock=self.clock,
        )

    def _serving(self) -> EngineCore:
        if self._loading is not None or self._core is None:
            raise UnavailableError("no model is loaded")
        return self._core

    def _read(self, submission: Submission, stream: RequestStream) -> _Chat:
        if self._status.phase in (EnginePhase.EMPTY, EnginePhase.FAILED, EnginePhase.STOPPED):
            raise UnavailableError(f"no model is loaded: the engine is {self._status.phase}")
        sampling = SamplingParams().override(submission.sampling)
        reply = (
            self._replies.get(submission.messages[-1].content, echo(submission))
            if isinstance(self._replies, Mapping)
            else self._replies(submission)
        )
        cuts = [reply.find(stop) for stop in sampling.stop if stop in reply]
        script = self._vocabulary.of_reply(reply[: min(cuts)] if cuts else reply)
        stops = (*sampling.stop_token_ids, script[-1])
        prompt = self._render(submission)
        self.prompts[submission.request_id] = prompt
        stream.num_prompt_tokens = len(prompt)
        sampling = replace(sampling, stop_token_ids=stops)
        return _Chat(submission, stream, prompt, script, sampling, self.clock.now)

    def _render(self, submission: Submission) -> tuple[int, ...]:
        """Token ids of the prompt: the context as it is, and what follows it word by word."""
        if submission.prompt_token_ids is not None:
            return submission.prompt_token_ids
        ids: list[int] = []
        first = 0
        context = submission.context
        if context is not None and context.model_key == MODEL_KEY:
            ids.extend(context.token_ids)
            first = context.num_messages
        for message in submission.messages[first:]:
            ids.extend(self._vocabulary.of_message(message))
        return (*ids, self._vocabulary.id("<assistant>"))

    def _admit(self, chat: _Chat) -> None:
        core = self._serving()
        request_id = chat.submission.request_id
        self._chats.setdefault(request_id, chat)
        before, scripts = core.num_unfinished, self._runner.scripts
        core.submit(chat.submission, chat.prompt, chat.sampling, chat.arrival)
        if core.num_unfinished > before:  # The core counts from 1 those that it did not refuse.
            scripts[len(scripts) + 1] = chat.script
        self._deliver(core)

    def _pin(self, core: EngineCore, name: str) -> None:
        ids = [i for message in self._pins[name] for i in self._vocabulary.of_message(message)]
        core.pins.pin(name, ids)

    def _withdraw_waiting(self) -> list[_Chat]:
        """Take the requests that wait out of the core, without a word to their owners."""
        if self._core is None:
            return []
        waiting = list(self._core._scheduler.waiting.head(len(self._core._scheduler.waiting)))
        for request in waiting:
            self._core.abort(request.request_id)
        self._core._roster.take_outputs()
        return [self._chats.pop(request.request_id) for request in waiting]

    def _end_all(self, error: EngineError) -> None:
        pending, self._pending = self._pending, {}
        for chat in pending.values():
            chat.stream.end_unserved(FinishReason.ERROR, error.info())
        self._end_running(error)

    def _end_running(self, error: EngineError) -> None:
        """End whatever is in the core."""
        if self._core is not None:
            for request in tuple(self._core._roster.live.values()):
                self._core._roster.end(request, FinishReason.ERROR, error.info())
            self._deliver(self._core)

    def _step(self, core: EngineCore) -> bool:
        """Whether there was anything to compute."""
        before = core.records.total
        self._tell(core.step())
        assert not self._runner.violations, self._runner.violations
        return core.records.total > before

    def _deliver(self, core: EngineCore) -> None:
        """Tell what came to an end without a step."""
        self._tell(core._roster.take_outputs())

    def _tell(self, outputs: list[TokenOutput]) -> None:
        for output in outputs:
            chat = self._chats[output.request_id]
            text = self._vocabulary.text(output.token_ids)
            finish = None if output.end is None else self._finish(chat, output.end)
            if finish is not None:
                del self._chats[output.request_id]
            chat.stream.put(Delta(text, len(output.token_ids), finish))
            if chat.stream.wake is not None:
                self._wakes[chat.stream.wake] = None

    def _finish(self, chat: _Chat, end: End) -> Finish:
        ids = (*end.token_ids, self._vocabulary.id("<end>"))
        context = Context(MODEL_KEY, ids, len(chat.submission.messages) + 1)
        error: ErrorInfo | None = end.error
        return Finish(end.reason, end.usage, end.timings, error, None if error else context)

    def _wake(self) -> None:
        """Outside the lock: a reader may call back at once."""
        with self._lock:
            wakes, self._wakes = tuple(self._wakes), {}
        for wake in wakes:
            wake()
