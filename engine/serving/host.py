"""EngineHost: the thread that owns an engine, and its EngineClient for all other threads."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from engine.api.block_map import BlockView
from engine.api.client import NOTHING_STATED, ChatMessage, LoadRequest, Submission
from engine.api.errors import DeviceLostError, EngineError, ModelError, UnavailableError, cause_of
from engine.api.knobs import KnobChange, Knobs
from engine.api.snapshot import Snapshot
from engine.api.status import EnginePhase, EngineStatus
from engine.api.stream import RequestStream
from engine.api.telemetry import Ring, StepRecord
from engine.batch.plan import TokenOutput
from engine.core.admission import check_priority
from engine.serving.attempt import LoadAttempt, LoadCancelledError
from engine.serving.loading import LoadedModel, ModelLoader
from engine.serving.lock import prompt_switches
from engine.serving.mail import Mail
from engine.serving.text_thread import TextThread
from engine.serving.watch import Watch, step_limit

if TYPE_CHECKING:
    # The engine thread imports these when it loads a model: they take 0.04 s, for which the first
    # screen would wait.
    from engine.core.core import EngineCore
    from engine.core.draft import Draft

log = logging.getLogger(__name__)

JOIN_TIMEOUT = 10.0
# The text of a step takes a millisecond. A tokenizer that decodes for this long never returns.
TEXT_SECONDS = 30.0
# A slow disk may be silent for longer; people see a warning, and nothing is ended.
SILENT_SECONDS = 60.0
# A load that can be cancelled ends at its next report of progress, well within this time. One that
# cannot is abandoned, because the end of the program would have to wait for it: an import of torch
# takes 4 s.
LOAD_TIMEOUT = 1.0


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A model and the request that loaded it. If another model was wanted, `failure` says why that
    one failed.
    """

    model: LoadedModel
    request: LoadRequest
    failure: str


class EngineHost:
    """Runs one core on a thread of its own, with a second thread for text.

    Commands reach the engine thread through a mailbox and take effect between two steps; an idle
    engine blocks on the mailbox and costs nothing. No caller ever waits for a step.

    Args:
        loader: imports and runs on the engine thread, so that torch loads after the first paint of
            the screen.
        clock: monotonic seconds, used for all times.
    """

    def __init__(self, loader: ModelLoader, clock: Callable[[], float] = time.monotonic) -> None:
        self._loader = loader
        self._clock = clock
        self._watch = Watch(clock)
        self._step_since: float | None = None
        self._step_limit = 0.0
        self._status_since = clock()
        self._mailbox: queue.SimpleQueue[Mail | None] = queue.SimpleQueue()
        self._status = EngineStatus(EnginePhase.EMPTY)
        self._status_lock = threading.Lock()
        self._core: EngineCore | None = None
        self._draft: Draft | None = None
        # These outlive their core: a reader that polls each second has not seen the last ones.
        self._records: Ring[StepRecord] = Ring(0)
        self._snapshot_wanted = False
        self._block: BlockView | None = None
        self._block_wanted = False
        self._wanted: LoadRequest | None = None  # as far as the mailbox was read
        self._newest: LoadRequest | None = None  # set as soon as it is requested
        self._load_lock = threading.Lock()
        self._stopping = False
        self._text = TextThread(clock, self._mailbox.put, self._text_failed)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(
        self, submission: Submission, wake: Callable[[], None] | None = None
    ) -> RequestStream:
        stream = RequestStream(submission.request_id, wake)
        self._text.submit(submission, stream)
        return stream

    def abort(self, request_id: str) -> None:
        self._text.abort(request_id)

    def set_priority(self, request_id: str, priority: int) -> None:
        check_priority(priority)
        self._text.set_priority(request_id, priority)

    def status(self) -> EngineStatus:
        status, status_since = self._status, self._status_since
        # Always read all of them, because the watch only counts time during which it is read often.
        text = self._watch.seconds(self._text.busy_since)
        step = self._watch.seconds(self._step_since)
        silent = self._watch.seconds(status_since)
        if status.has_crashed:
            return status
        if text > TEXT_SECONDS:
            what, limit = "the text thread has been in one call", TEXT_SECONDS
            return _hung(status, f"{what} for more than {limit:g} s")
        if step > (limit := self._step_limit):
            return _hung(status, f"a step has been under way for more than {limit:,.0f} s")
        if status.phase is EnginePhase.LOADING and silent >= SILENT_SECONDS:
            detail = f"{status.detail}, nothing new for {silent // 60:.0f} min"
            return replace(status, detail=detail)
        return status

    def snapshot(self) -> Snapshot | None:
        self._snapshot_wanted = True
        core = self._core
        if core is not None and core.idle and core.num_unfinished:
            self._wake()  # The engine sleeps, but the times of waiting requests grow.
        draft = self._draft
        return draft.snapshot(self._clock()) if draft is not None else None

    def block(self, number: int) -> BlockView | None:
        if not self._block_wanted and self._core is not None:
            self._block_wanted = True
            self._mailbox.put(partial(self._read_block, number))
        view = self._block
        return view if view is not None and view.number == number else None

    def _read_block(self, number: int, core: EngineCore) -> None:
        self._block_wanted = False
        view = core.block(number)
        if view is None:
            self._block = None
        else:
            self._text.describe(view, self._described)

    def _described(self, view: BlockView) -> None:
        self._block = view

    def step_records(self, since: int) -> tuple[StepRecord, ...]:
        return self._records.since(since)

    def set_knobs(self, changes: Mapping[str, object], who: str) -> Knobs:
        knobs = self._loaded().change_knobs(changes, who)
        self._wake()
        return knobs

    def undo_knobs(self, who: str, within: float = 0.0) -> KnobChange | None:
        change = self._loaded().undo_knobs(who, within)
        self._wake()
        return change

    def pin(self, name: str, messages: tuple[ChatMessage, ...]) -> None:
        self._text.pin(name, messages)

    def unpin(self, name: str) -> None:
        self._text.unpin(name)

    def tokenize(
        self,
        prompt: str | tuple[ChatMessage, ...],
        sampling: Mapping[str, object] = NOTHING_STATED,
        *,
        add_special_tokens: bool = True,
        user: str = "",
    ) -> Future[list[int]]:
        return self._text.tokenize(prompt, sampling, add_special_tokens, user)

    def detokenize(self, token_ids: Sequence[int]) -> Future[str]:
        return self._text.detokenize(token_ids)

    def spell(self, token_ids: Sequence[int]) -> Future[list[str]]:
        return self._text.spell(token_ids)

    def load(self, request: LoadRequest) -> None:
        request = replace(request)  # Identity distinguishes requests, even equal ones.
        with self._load_lock:
            self._newest = request
            # It goes through the text thread: earlier submissions still reach the old model.
            self._text.hold(request)

    def shutdown(self) -> None:
        self._stopping = True
        self._wake()
        self._thread.join(LOAD_TIMEOUT)
        if self._status.phase is not EnginePhase.LOADING:
            self._thread.join(JOIN_TIMEOUT - LOAD_TIMEOUT)
        self._text.close(UnavailableError("the engine was shut down"))

    def _loaded(self) -> EngineCore:
        core = self._core
        if core is None:
            raise UnavailableError("no model is loaded")
        return core

    def _wake(self) -> None:
        self._mailbox.put(None)

    def _run(self) -> None:
        try:
            served: LoadRequest | None = None
            while not self._stopping:
                if (wanted := self._wanted) is None:
                    self._read(self._mailbox.get())
                    continue
                self._wanted = None
                try:
                    loaded = self._load(wanted, served)
                except LoadCancelledError:
                    continue
                served = loaded.request if loaded is not None else None
                if loaded is not None:
                    with prompt_switches(loaded.model.config.device):
                        self._serve(loaded, wanted)
            self._say(EngineStatus(EnginePhase.STOPPED))
        except BaseException as error:
            log.exception("the engine thread ended")
            self._fail_all(error)

    def _fail_all(self, error: BaseException) -> None:
        """End all requests, and publish that nothing is served any more."""
        cause = error.message if isinstance(error, EngineError) else cause_of(error)
        failure = UnavailableError(f"the engine failed: {cause}")
        self._say_crashed(failure)
        self._text.close(failure)

    def _text_failed(self, error: EngineError) -> None:
        """Stop the host, because no reply can be delivered without text."""
        self._say_crashed(error)
        self._stopping = True
        self._wake()

    def _say(self, status: EngineStatus) -> None:
        """Publish a status. The status of a crash is never replaced."""
        with self._status_lock:
            if not self._status.has_crashed:
                self._status_since = self._clock()
                self._status = status

    def _say_crashed(self, error: EngineError) -> None:
        model = self._status.model
        self._say(EngineStatus(EnginePhase.FAILED, model, error.message, has_crashed=True))

    def _load(self, wanted: LoadRequest, served: LoadRequest | None) -> _Loaded | None:
        """Load a model, or reload the previous one; None if neither can be loaded.

        Raises:
            DeviceLostError: no model can be loaded any more.
        """
        failure = ""
        for request in (wanted, served):
            if request is None:
                continue
            try:
                attempt = LoadAttempt(request, self._say, partial(self._is_wanted, wanted))
                model = attempt.run(self._loader)
                note = f"{failure}; {model.card.name} is back" if failure else ""
                return _Loaded(model, request, note)
            except DeviceLostError:
                raise  # the previous model would fail there too
            except EngineError as error:
                failed = "; nor go back to" if failure else "could not load"
                failure += f"{failed} {request.model}: {error.message}"
                log.error("%s", failure)
        self._say(EngineStatus(EnginePhase.FAILED, wanted.model, failure))
        self._text.refuse(ModelError(failure), wanted)
        return None

    def _is_wanted(self, request: LoadRequest) -> bool:
        return not self._stopping and self._newest is request

    def _serve(self, loaded: _Loaded, wanted: LoadRequest) -> None:
        """Step until another model is wanted and all requests have ended, or the host stops."""
        from engine.core.core import EngineCore

        model = loaded.model
        try:
            core = EngineCore(
                config=model.config,
                runner=model.runner,
                shape=model.shape,
                card=model.card,
                key=model.key,
                eos_token_ids=model.eos_token_ids,
                knobs=model.knobs,
                clock=self._clock,
                swap_rate=model.swap_rate,
                knob_notes=model.knob_notes,
            )
            self._block, self._block_wanted = None, False
            self._records = core.records
            self._core, self._draft = core, core.draft()
            self._step_limit = step_limit(model.shape, model.config.max_num_batched_tokens)
            self._say(EngineStatus(EnginePhase.READY, model.card.name, loaded.failure))
            self._text.serve(model, wanted)
            while not self._stopping and not (self._wanted and self._drained(core, self._wanted)):
                self._text.deliver(self._step(core))
                if self._snapshot_wanted or core.idle:
                    self._snapshot_wanted = False
                    self._draft = core.draft()
                self._read_mail(core)
                # A step may take seconds; refused or aborted requests need not wait for the next.
                self._text.deliver(core.drain_outputs())
            core.abort_all()
            while not core.idle:  # Steps in flight use the model too.
                self._text.deliver(self._step(core))
        except BaseException as error:
            # Before the model is closed, because closing on a lost device raises too.
            self._fail_all(error)
            raise
        finally:
            self._core = self._draft = None
            model.close()

    def _step(self, core: EngineCore) -> list[TokenOutput]:
        self._step_since = self._clock()
        outputs = core.step()
        self._step_since = None
        return outputs

    def _drained(self, core: EngineCore, wanted: LoadRequest) -> bool:
        """Whether all requests have ended. If not, lift a pause or a drain, and report the wait."""
        number = core.num_unfinished
        if not number and core.idle:
            return True
        who = "1 request ends" if number == 1 else f"{number} requests end"
        detail = f"{who} before {wanted.model} is loaded"
        if self._status.phase is not EnginePhase.DRAINING:
            log.info("%s", detail)
        self._say(replace(self._status, phase=EnginePhase.DRAINING, detail=detail))
        knobs = core.ledger.knobs
        if knobs.paused or knobs.draining:
            core.change_knobs({"paused": False, "draining": False}, "model switch")
        return False

    def _read_mail(self, core: EngineCore) -> None:
        """Read the mail. Without anything to compute, wait for mail or for the core's next wake."""
        try:
            if core.idle and not (self._stopping or self._wanted is not None):
                wake = core.next_wake
                timeout = None if wake is None else max(0.0, wake - self._clock())
                self._read(self._mailbox.get(timeout=timeout))
            while True:
                self._read(self._mailbox.get_nowait())
        except queue.Empty:
            pass

    def _read(self, mail: Mail | None) -> None:
        """Handle mail. Commands are for the loaded model; a late abort may find none."""
        if isinstance(mail, LoadRequest):
            self._wanted = mail
        elif mail is not None and self._core is not None:
            mail(self._core)


def _hung(status: EngineStatus, detail: str) -> EngineStatus:
    return EngineStatus(EnginePhase.FAILED, status.model, detail, has_crashed=True)
