"""ScriptedEngine: the real core behind an EngineClient, whose replies are given, and whose time
passes when told to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import NamedTuple, TypeVar

from engine.api.block_map import BlockView
from engine.api.client import NOTHING_STATED, ChatMessage, LoadRequest, Submission
from engine.api.config import EngineConfig
from engine.api.errors import EngineError, InvalidRequestError, ModelError, UnavailableError
from engine.api.knobs import KnobChange, Knobs
from engine.api.lifecycle import FinishReason, RequestState
from engine.api.snapshot import Snapshot
from engine.api.status import EnginePhase, EngineStatus, OffPath
from engine.api.stream import RequestStream
from engine.api.telemetry import StepRecord
from engine.batch.plan import TokenOutput
from engine.core.admission import check_priority
from engine.core.core import EngineCore
from engine.scheduling.policies import policy_names
from tests.support.clock import VirtualClock
from tests.support.driving_stream import DrivingStream
from tests.support.replies import Replies, echo, reply_to
from tests.support.scripted_chat import ScriptedChat
from tests.support.scripted_core import CONFIG, MODEL_KEY, SAMPLING, scripted_core
from tests.support.scripted_runner import ScriptedRunner
from tests.support.vocabulary import Vocabulary

POLICIES = policy_names()

T = TypeVar("T")


class Tokenized(NamedTuple):
    """A recorded call of the tokenizer."""

    prompt: str | tuple[ChatMessage, ...]
    sampling: Mapping[str, object]
    add_special_tokens: bool
    user: str


class ScriptedEngine:
    """Gives each request the tokens of its scripted reply, planned and accounted for by the core.

    No thread is started, and the clock moves by `step_seconds` a step. Refusals and ends by others
    than a step are told at once.

    Args:
        replies: by the text of the last message; what is missing is echoed. Or a function. They
            may begin with thinking, within `<think>`.
        drives_itself: waiting for a stream advances the engine, for readers that block.
        loaded: whether a model is there from the start; else call `load` and `ready`.
        off_path, off_kernels: of the cards of its models.

    Attributes:
        submissions: all that came, refused ones too.
        prompts: token ids by request id, of requests that could be read.
        tokenized: all that was to be tokenized.
        clock: seconds since the start.
        off: `off_path` and `off_kernels` of the models that come.
    """

    def __init__(
        self,
        replies: Replies = echo,
        *,
        config: EngineConfig = CONFIG,
        knobs: Knobs | None = None,
        step_seconds: float = 0.02,
        drives_itself: bool = False,
        loaded: bool = True,
        off_path: tuple[OffPath, ...] = (),
        off_kernels: str = "",
    ) -> None:
        self.off = off_path, off_kernels
        self._replies = replies
        self._config = config
        self._first_knobs = knobs or Knobs()
        self._step_seconds = step_seconds
        self._drives_itself = drives_itself
        self.clock = VirtualClock(0.0)
        self._lock = threading.RLock()
        self._status = EngineStatus(EnginePhase.EMPTY)
        self._loading: LoadRequest | None = None
        self._vocabulary = Vocabulary()
        self._core: EngineCore | None = None
        self._runner = self._new_runner()
        # Those that wait for a model are in no core.
        self._chats: dict[str, ScriptedChat] = {}
        self._pending: dict[str, ScriptedChat] = {}
        self._pins: dict[str, tuple[ChatMessage, ...]] = {}
        self._wakes: dict[Callable[[], None], None] = {}
        self.submissions: list[Submission] = []
        self.prompts: dict[str, tuple[int, ...]] = {}
        self.tokenized: list[Tokenized] = []
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
            DrivingStream(request_id, wake, self.advance)
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

    def block(self, number: int) -> BlockView | None:
        with self._lock:
            view = self._core.block(number) if self._core is not None else None
            return view and replace(view, text=self._vocabulary.text(view.token_ids))

    def step_records(self, since: int) -> tuple[StepRecord, ...]:
        return self._core.records.since(since) if self._core is not None else ()

    def set_knobs(self, changes: Mapping[str, object], who: str) -> Knobs:
        with self._lock:
            return self._serving().change_knobs(changes, who)

    def undo_knobs(self, who: str, within: float = 0.0) -> KnobChange | None:
        with self._lock:
            return self._serving().undo_knobs(who, within)

    def pin(self, name: str, messages: tuple[ChatMessage, ...]) -> None:
        with self._lock:
            self._pins[name] = messages
            if self._core is not None:
                self._pin(self._core, name)

    def unpin(self, name: str) -> None:
        with self._lock:
            if self._pins.pop(name, None) is not None and self._core is not None:
                self._core.pins.unpin(name)

    def tokenize(
        self,
        prompt: str | tuple[ChatMessage, ...],
        sampling: Mapping[str, object] = NOTHING_STATED,
        *,
        add_special_tokens: bool = True,
        user: str = "",
    ) -> Future[list[int]]:
        self.tokenized.append(Tokenized(prompt, sampling, add_special_tokens, user))

        def tokenize() -> list[int]:
            SAMPLING.override(sampling)
            is_text = isinstance(prompt, str)
            asked = Submission(prompt=prompt) if is_text else Submission(messages=prompt)
            return list(self._vocabulary.of_prompt(asked, MODEL_KEY))

        return self._promise(tokenize)

    def detokenize(self, token_ids: Sequence[int]) -> Future[str]:
        return self._promise(lambda: " ".join(self._spell(token_ids)))

    def spell(self, token_ids: Sequence[int]) -> Future[list[str]]:
        return self._promise(lambda: self._spell(token_ids))

    def _spell(self, token_ids: Sequence[int]) -> list[str]:
        try:
            return self._vocabulary.spell(token_ids)
        except IndexError:
            raise InvalidRequestError("tokens has ids that are none", "tokens") from None

    def _promise(self, make: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        try:
            with self._lock:
                self._serving()
                future.set_result(make())
        except EngineError as error:
            future.set_exception(error)
        return future

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
            self._runner = self._new_runner()
            self._core = scripted_core(
                self._loading, self._runner, self._first_knobs, self.clock, *self.off
            )
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
            self._end_all(ModelError(detail))
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
            self._fail(self._serving(), request_id, EngineError(message))
        self._wake()

    # How it does it.

    def _new_runner(self) -> ScriptedRunner:
        return ScriptedRunner(
            self._config, 1, clock=self.clock, seconds_per_step=self._step_seconds
        )

    def _serving(self) -> EngineCore:
        if self._loading is not None or self._core is None:
            raise UnavailableError("no model is loaded")
        return self._core

    def _read(self, submission: Submission, stream: RequestStream) -> ScriptedChat:
        if self._status.phase in (EnginePhase.EMPTY, EnginePhase.FAILED, EnginePhase.STOPPED):
            raise UnavailableError(f"no model is loaded: the engine is {self._status.phase}")
        sampling = SAMPLING.override(submission.sampling)
        asked, num_partial = submission, 0
        if submission.num_partial is not None:
            asked = replace(submission, messages=submission.messages[:-1])
        reply, stop = reply_to(asked, self._replies, sampling.stop)
        script = self._vocabulary.of_reply(reply)
        stops = (*sampling.stop_token_ids, script[-1])
        prompt = self._vocabulary.of_prompt(asked, MODEL_KEY)
        if submission.num_partial is not None:
            prompt, num_partial = self._vocabulary.of_partial(submission, prompt, script)
        self.prompts[submission.request_id] = prompt
        stream.num_prompt_tokens = len(prompt)
        # What is scripted has the structure that it has.
        sampling = replace(sampling, stop_token_ids=stops, structure=None)
        chat = ScriptedChat(
            submission, stream, prompt, script[num_partial:], sampling, self.clock.now, stop
        )
        (chat.resume if submission.repeats_partial else chat.skip)(
            [(i, self._vocabulary.text((i,))) for i in script[:num_partial]]
        )
        return chat

    def _admit(self, chat: ScriptedChat) -> None:
        core = self._serving()
        request_id = chat.submission.request_id
        self._chats.setdefault(request_id, chat)
        before, scripts = core.num_unfinished, self._runner.scripts
        core.add_request(chat.submission, chat.prompt, chat.sampling, chat.arrival)
        if core.num_unfinished > before:  # The core counts from 1 those that it did not refuse.
            scripts[len(scripts) + 1] = chat.script
        self._deliver(core)

    def _pin(self, core: EngineCore, name: str) -> None:
        ids = [i for message in self._pins[name] for i in self._vocabulary.of_message(message)]
        core.pins.pin(name, ids)

    def _withdraw_waiting(self) -> list[ScriptedChat]:
        """Take the requests that wait out of the core, without a word to their owners."""
        if self._core is None:
            return []
        waits = (RequestState.WAITING, RequestState.PREEMPTED)
        waiting = [r.request_id for r in self._core.snapshot().requests if r.state in waits]
        for request_id in waiting:
            self._core.abort(request_id)
        self._core.drain_outputs()
        return [self._chats.pop(request_id) for request_id in waiting]

    def _end_all(self, error: EngineError) -> None:
        pending, self._pending = self._pending, {}
        for chat in pending.values():
            chat.stream.end_unserved(FinishReason.ERROR, error.info())
        self._end_running(error)

    def _end_running(self, error: EngineError) -> None:
        """End whatever is in the core."""
        if self._core is not None:
            for request_id in tuple(self._chats):
                self._fail(self._core, request_id, error)

    def _fail(self, core: EngineCore, request_id: str, error: EngineError) -> None:
        """End a request as one is ended whose text cannot be made: the core is told to abort it,
        and its owner of the error.
        """
        self._chats[request_id].error = error
        core.abort(request_id)
        self._deliver(core)

    def _step(self, core: EngineCore) -> bool:
        """Whether there was anything to compute."""
        before = core.records.total
        self._tell(core.step())
        assert not self._runner.violations, self._runner.violations
        return core.records.total > before

    def _deliver(self, core: EngineCore) -> None:
        """Tell what came to an end without a step."""
        self._tell(core.drain_outputs())

    def _tell(self, outputs: list[TokenOutput]) -> None:
        for output in outputs:
            chat = self._chats[output.request_id]
            texts = [(i, self._vocabulary.text((i,))) for i in output.token_ids]
            last = self._vocabulary.id("<end>")
            finish = None if output.end is None else chat.finish(output.end, last)
            if finish is not None:
                del self._chats[output.request_id]
            chat.stream.put(chat.take(texts, finish, self.clock()))
            if chat.stream.wake is not None:
                self._wakes[chat.stream.wake] = None

    def _wake(self) -> None:
        """Outside the lock: a reader may call back at once."""
        with self._lock:
            wakes, self._wakes = tuple(self._wakes), {}
        for wake in wakes:
            wake()
