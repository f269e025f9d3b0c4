"""Translator: chats to token ids and token ids to text, on a thread beside the engine's."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from engine.client import ChatMessage, LoadRequest, Submission
from engine.core import EngineCore
from engine.errors import EngineError, ErrorInfo, InvalidRequestError
from engine.loading import LoadedModel
from engine.output import TokenOutput
from engine.request import FinishReason
from engine.stream import RequestStream
from engine.text.processor import OutputProcessor

log = logging.getLogger(__name__)

Mail: TypeAlias = Callable[[EngineCore], None] | LoadRequest


@dataclass(frozen=True, slots=True)
class _Pending:
    """A submission that waits for a model."""

    submission: Submission
    stream: RequestStream
    arrival: float


class Translator:
    """Keeps tokenization, detokenization and stop strings off the step's critical path.

    Submissions, aborts, changes of priority and wishes for another model pass through here in the
    order they came, so that each submission reaches the model it was made for, and nothing about it
    overtakes it: those after such a wish wait here for the model, encoded by nobody yet.

    Args:
        clock: monotonic seconds.
        forward: posts mail to the engine thread: a command for the core, or what to load next.
    """

    def __init__(self, clock: Callable[[], float], forward: Callable[[Mail], None]) -> None:
        self._clock = clock
        self._forward = forward
        self._model: LoadedModel | None = None
        self._processor: OutputProcessor | None = None
        self._refusal: EngineError | None = None
        self._holding = True
        self._awaited: LoadRequest | None = None
        self._pending: dict[str, _Pending] = {}
        self._pins: dict[str, tuple[ChatMessage, ...]] = {}
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed: EngineError | None = None
        self._thread = threading.Thread(target=self._run, name="engine-text", daemon=True)
        self._thread.start()

    def submit(self, submission: Submission, stream: RequestStream) -> None:
        """Take a request in; its refusal comes through the stream."""
        pending = _Pending(submission, stream, self._clock())
        if not self._post(partial(self._submit, pending)):
            assert self._closed is not None
            _refuse(stream, self._closed)

    def abort(self, request_id: str) -> None:
        self._post(partial(self._abort, request_id))

    def set_priority(self, request_id: str, priority: int) -> None:
        """Change the priority of a request, wherever it waits."""
        self._post(partial(self._set_priority, request_id, priority))

    def pin(self, name: str, messages: tuple[ChatMessage, ...]) -> None:
        """Have the model keep what chats that begin like this have in common."""
        self._post(partial(self._pin, name, messages))

    def unpin(self, name: str) -> None:
        self._post(partial(self._unpin, name))

    def deliver(self, outputs: list[TokenOutput]) -> None:
        """Tokens from a step."""
        if outputs:
            self._post(partial(self._process, outputs))

    def hold(self, request: LoadRequest) -> None:
        """Another model is wanted: tell the engine, and hold submissions from here on for it.

        Args:
            request: told from earlier ones by identity.
        """
        self._post(partial(self._hold, request))

    def serve(self, model: LoadedModel, request: LoadRequest) -> None:
        """A model is there: what waited goes to it, unless yet another is wanted than `request`."""
        self._post(partial(self._serve, model, request))

    def refuse(self, error: EngineError, request: LoadRequest) -> None:
        """No model is there: submissions that wait and those that come end with `error`, unless
        another is wanted than `request`.
        """
        self._post(partial(self._refuse_until_loaded, error, request))

    def close(self, error: EngineError) -> None:
        """End what is open with `error`, then the thread. Blocks; a second call is ignored."""
        with self._lock:
            if self._closed is not None:
                return
            self._closed = error
            self._inbox.put(None)
        self._thread.join()

    def _post(self, action: Callable[[], None]) -> bool:
        with self._lock:
            if self._closed is None:
                self._inbox.put(action)
            return self._closed is None

    def _run(self) -> None:
        while (action := self._inbox.get()) is not None:
            try:
                action()
            except Exception:
                # One bad request must not end the thread that all others speak through.
                log.exception("the text thread goes on after an error")
        assert self._closed is not None
        self._refuse_pending(self._closed)
        if self._processor is not None:
            self._processor.close_all(self._closed.info())

    def _submit(self, pending: _Pending) -> None:
        submission = pending.submission
        name = submission.request_id
        # One may still run on the model before while those that come wait for the next.
        runs = self._processor is not None and self._processor.is_open(name)
        if runs or name in self._pending:
            error = InvalidRequestError(
                f"request_id is {name!r}; a request with this id has not ended yet", "request_id"
            )
            _refuse(pending.stream, error)
        elif self._refusal is not None:
            _refuse(pending.stream, self._refusal)
        elif self._holding or self._model is None or self._processor is None:
            self._pending[name] = pending
        else:
            self._admit(pending, self._model, self._processor)

    def _admit(self, pending: _Pending, model: LoadedModel, processor: OutputProcessor) -> None:
        submission, codec = pending.submission, model.codec
        try:
            sampling = model.sampling.override(submission.sampling)
            codec.check_token_ids(sampling.stop_token_ids, "stop_token_ids")
            if submission.prompt_token_ids is None:
                token_ids = codec.encode(submission.messages, submission.context)
            else:
                token_ids = list(submission.prompt_token_ids)
                codec.check_token_ids(token_ids, "prompt_token_ids")
            pending.stream.num_prompt_tokens = len(token_ids)
            processor.open(pending.stream, sampling, len(submission.messages))
        except EngineError as error:
            _refuse(pending.stream, error)
            return
        except Exception as error:
            log.exception("request %s could not be read", submission.request_id)
            refusal = InvalidRequestError(f"the prompt could not be read: {error}", "prompt")
            _refuse(pending.stream, refusal)
            return
        self._forward(
            lambda core: core.submit(
                submission.request_id,
                token_ids,
                sampling,
                origin=submission.origin,
                priority=submission.priority,
                deadline=submission.deadline,
                parent=submission.parent,
                attempt=submission.attempt,
                fork_of=submission.fork_of,
                arrival=pending.arrival,
            )
        )

    def _abort(self, request_id: str) -> None:
        pending = self._pending.pop(request_id, None)
        if pending is not None:
            _end_unserved(pending.stream, FinishReason.ABORT)
        else:
            self._forward(lambda core: core.abort(request_id))

    def _set_priority(self, request_id: str, priority: int) -> None:
        pending = self._pending.get(request_id)
        if pending is not None:
            submission = replace(pending.submission, priority=priority)
            self._pending[request_id] = replace(pending, submission=submission)
        else:
            self._forward(lambda core: core.set_priority(request_id, priority))

    def _pin(self, name: str, messages: tuple[ChatMessage, ...]) -> None:
        self._pins[name] = messages
        if self._model is not None and not self._holding:
            self._forward_pin(name, messages, self._model)

    def _forward_pin(
        self, name: str, messages: tuple[ChatMessage, ...], model: LoadedModel
    ) -> None:
        try:
            token_ids = model.codec.common_prefix(messages)
        except Exception as error:
            log.warning("the prefix %s cannot be pinned: %s", name, error)
            reason = f"it cannot be read: {error}"
            self._forward(lambda core: core.pins.refuse(name, reason))
            return
        self._forward(lambda core: core.pins.pin(name, token_ids))

    def _unpin(self, name: str) -> None:
        if self._pins.pop(name, None) is not None:
            self._forward(lambda core: core.pins.unpin(name))

    def _process(self, outputs: list[TokenOutput]) -> None:
        assert self._processor is not None
        for found in self._processor.process(outputs):
            self._forward(partial(EngineCore.stop, found=found))

    def _hold(self, request: LoadRequest) -> None:
        self._awaited = request
        self._holding = True
        self._refusal = None
        self._forward(request)

    def _serve(self, model: LoadedModel, request: LoadRequest) -> None:
        if request is not self._awaited:
            return
        self._model = model
        self._processor = OutputProcessor(model.codec, self._abort)
        self._holding = False
        for name, messages in self._pins.items():
            self._forward_pin(name, messages, model)
        pending, self._pending = self._pending, {}
        for entry in pending.values():
            self._admit(entry, model, self._processor)

    def _refuse_until_loaded(self, error: EngineError, request: LoadRequest) -> None:
        if request is self._awaited:
            self._refusal = error
            self._refuse_pending(error)

    def _refuse_pending(self, error: EngineError) -> None:
        pending, self._pending = self._pending, {}
        for entry in pending.values():
            _refuse(entry.stream, error)


def _refuse(stream: RequestStream, error: EngineError) -> None:
    _end_unserved(stream, FinishReason.ERROR, error.info())


def _end_unserved(
    stream: RequestStream, reason: FinishReason, error: ErrorInfo | None = None
) -> None:
    try:
        stream.end_unserved(reason, error)
    except Exception:
        log.exception("the wake call of a stream's reader failed")
