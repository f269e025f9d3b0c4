"""TextThread: converts chats to token ids and token ids to text, off the engine's thread."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

from engine.api.block_map import BlockView
from engine.api.client import ChatMessage, LoadRequest, Submission
from engine.api.errors import EngineError, InvalidRequestError, UnavailableError, cause_of
from engine.api.lifecycle import FinishReason
from engine.api.sampling import SamplingParams
from engine.api.stream import RequestStream
from engine.api.tools import ToolUse, json_bytes
from engine.batch.plan import StopFound, TokenOutput
from engine.serving.loading import LoadedModel
from engine.serving.mail import Mail
from engine.serving.pending import OWN, Common, Encoded, Pending, are_siblings
from engine.serving.prefixes import Prefixes
from engine.serving.tokenizing import Tokenizing
from engine.text.arguments import context_key
from engine.text.codec import ChatCodec
from engine.text.encodings import Encoding, Encodings
from engine.text.job import num_bytes, text_bytes
from engine.text.pool import ClosedError
from engine.text.processor import Ending, OutputProcessor

if TYPE_CHECKING:
    from engine.core.core import EngineCore

log = logging.getLogger(__name__)

T = TypeVar("T")

JOIN_TIMEOUT = 10.0
# No user name ends like this: ending a reply does not wait for its user's prompts.
_ENDINGS = "\n"


class TextThread:
    """Keeps tokenization, detokenization and stop strings off the step's critical path.

    Submissions, aborts, changes of priority and load requests pass through here in order, so that
    each submission reaches the model it was made for, and no later message about it overtakes it.
    Submissions after a load request wait here, not yet encoded, until that model is loaded, and the
    load request waits for the submissions before it. A user's submissions reach the engine in
    order. Users take turns in the encoding queue (`Encodings`), which delays no text.

    Args:
        clock: monotonic seconds.
        forward: sends mail to the engine thread: a command for the core, or the model to load next.
        failed: called on the text thread when it ends by an error, with the error for `close`. By
            then the owners of all open requests have been notified.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        forward: Callable[[Mail], None],
        failed: Callable[[EngineError], None],
    ) -> None:
        self._clock = clock
        self._forward = forward
        self._failed = failed
        self._model: LoadedModel | None = None
        self._processor: OutputProcessor | None = None
        self._refusal: EngineError | None = None
        self._holding = True
        self._awaited: LoadRequest | None = None
        # A load request that waits for prompts in encoding.
        self._held_load: LoadRequest | None = None
        self._pending: dict[str, Pending] = {}
        self._encoding: dict[str, Pending] = {}
        # By the id of the first reply to a request, as long as a waiting reply shares it.
        self._commons: WeakValueDictionary[str, Common] = WeakValueDictionary()
        # Name, first reply and error of the last request that was refused at once.
        self._refused: tuple[str, Submission, EngineError] | None = None
        self._encodings = Encodings()
        self._prefixes = Prefixes(self._encodings, self._post, forward)
        self._tokenizing = Tokenizing(self._encodings, self._post)
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed: EngineError | None = None
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="engine-text", daemon=True)
        self._thread.start()

    @property
    def busy_since(self) -> float | None:
        """When the text thread's current call began; None while it waits."""
        return self._busy_since

    def submit(self, submission: Submission, stream: RequestStream) -> None:
        """Accept a request; a refusal comes through the stream."""
        pending = Pending(submission, stream, self._clock())
        if not self._post(partial(self._dispatch, pending)):
            assert self._closed is not None
            pending.refuse(self._closed)

    def abort(self, request_id: str) -> None:
        self._post(partial(self._abort, request_id))

    def set_priority(self, request_id: str, priority: int) -> None:
        """Change the priority of a request, wherever it waits."""
        self._post(partial(self._set_priority, request_id, priority))

    def pin(self, name: str, messages: tuple[ChatMessage, ...]) -> None:
        """Make the model pin the shared prefix of chats that begin with these messages."""
        self._post(partial(self._prefixes.pin, name, messages))

    def unpin(self, name: str) -> None:
        self._post(partial(self._prefixes.unpin, name))

    def tokenize(
        self,
        prompt: str | tuple[ChatMessage, ...],
        sampling: Mapping[str, object],
        add_special_tokens: bool,
        user: str,
    ) -> Future[list[int]]:
        """See `EngineClient.tokenize`."""
        tokenize = self._tokenizing.tokenize
        return self._promise(partial(tokenize, prompt, sampling, add_special_tokens, user))

    def detokenize(self, token_ids: Sequence[int]) -> Future[str]:
        """See `EngineClient.detokenize`."""
        return self._promise(partial(self._tokenizing.detokenize, token_ids))

    def spell(self, token_ids: Sequence[int]) -> Future[list[str]]:
        """See `EngineClient.spell`."""
        return self._promise(partial(self._tokenizing.spell, token_ids))

    def _promise(self, action: Callable[[Future[T]], None]) -> Future[T]:
        """Make the text thread do something with a result, and return its future."""
        future: Future[T] = Future()
        if not self._post(partial(action, future)):
            assert self._closed is not None
            future.set_exception(self._closed)
        return future

    def deliver(self, outputs: list[TokenOutput]) -> None:
        """Convert the tokens of a step to text."""
        if outputs:
            self._post(partial(self._process, outputs, self._clock()))

    def describe(self, view: BlockView, tell: Callable[[BlockView], None]) -> None:
        """Add the text of a block's tokens to its view, and call `tell` with it, on the text
        thread."""
        self._post(partial(self._describe, view, tell))

    def hold(self, request: LoadRequest) -> None:
        """Another model is wanted: forward the request, and hold later submissions for that model.

        Args:
            request: the load request, distinguished from earlier ones by identity.
        """
        self._post(partial(self._hold, request))

    def serve(self, model: LoadedModel, request: LoadRequest) -> None:
        """Pass waiting submissions to a loaded model, unless a load request newer than `request`
        waits."""
        self._post(partial(self._serve, model, request))

    def refuse(self, error: EngineError, request: LoadRequest) -> None:
        """No model is loaded: waiting and new submissions end with `error`, unless a newer one than
        `request` is wanted.
        """
        self._post(partial(self._refuse_until_loaded, error, request))

    def close(self, error: EngineError) -> None:
        """End all open requests with `error`, then the thread; a second call is ignored.

        Blocks, but at most 10 s for a call that does not return.
        """
        if self._close(error):
            self._thread.join(JOIN_TIMEOUT)

    def _close(self, error: EngineError) -> bool:
        """Make the text thread stop after the calls posted so far; False if it is already
        stopping."""
        with self._lock:
            if self._closed is not None:
                return False
            self._closed = error
            self._inbox.put(None)
            return True

    def _post(self, action: Callable[[], None]) -> bool:
        with self._lock:
            if self._closed is None:
                self._inbox.put(action)
            return self._closed is None

    def _run(self) -> None:
        failure: EngineError | None = None
        while (action := self._inbox.get()) is not None:
            self._busy_since = self._clock()
            try:
                action()
            except BaseException as error:
                # An error in a request's text ends only that request. This one is a bug, and ends
                # all of them.
                if failure is None:
                    log.exception("the text thread ends")
                    failure = UnavailableError(f"the text thread failed: {cause_of(error)}")
                    self._close(failure)
            self._busy_since = None
        assert self._closed is not None
        self._end_all(self._closed)
        if failure is not None:
            self._failed(failure)

    def _end_all(self, error: EngineError) -> None:
        """End all open requests."""
        self._encodings.close()
        self._tokenizing.close(error)
        for waiting in (self._encoding, self._pending):
            for entry in waiting.values():
                entry.refuse(error)
            waiting.clear()
        if self._processor is not None:
            self._processor.close_all(error.info())

    def _dispatch(self, pending: Pending) -> None:
        submission = pending.submission
        name = submission.request_id
        # A request may still run on the old model while new ones wait for the next.
        runs = self._processor is not None and self._processor.is_open(name)
        if runs or name in self._pending or name in self._encoding:
            error = InvalidRequestError(
                f"request_id is {name!r}; a request with this id has not ended yet", "request_id"
            )
            pending.refuse(error)
        elif self._refusal is not None:
            pending.refuse(self._refusal)
        elif self._holding or self._model is None:
            self._pending[name] = pending
        else:
            self._encode(pending, self._model)

    def _encode(self, pending: Pending, model: LoadedModel) -> None:
        """Queue a prompt for encoding, or refuse it."""
        submission = pending.submission
        card = model.card
        defaults = card.chat_sampling if submission.chat_defaults else card.sampling
        try:
            common = self._common(submission, model, defaults)
            is_first = common.submission is submission
            sampling = common.sampling if is_first else common.sampling_of(submission, defaults)
        except BaseException as error:
            pending.refuse(error)
            return

        def done(result: Encoded | BaseException) -> None:
            self._post(partial(self._encoded, pending, sampling, result))

        make = partial(_encode, submission, model.codec, sampling)
        # This keeps `common` alive as long as one of its replies waits.
        pending.encoding = Encoding(partial(common.encoded, make), done)
        self._encoding[submission.request_id] = pending
        size = common.size if is_first else 0
        self._encodings.put(submission.origin.user, pending.encoding, size)

    def _common(
        self, submission: Submission, model: LoadedModel, defaults: SamplingParams
    ) -> Common:
        """Return the state shared by the replies to a request, made by the first of them.

        Raises:
            EngineError: see `_checked`, which refuses all of them at once.
        """
        name = submission.fork_of or submission.request_id
        common = self._commons.get(name)
        if common is not None and common.model is model:
            if are_siblings(common.submission, submission):
                return common
        elif self._refused is not None and self._refused[0] == name:
            _, first, error = self._refused
            if are_siblings(first, submission):
                raise error.with_traceback(None)
        try:
            common = _checked(submission, model, defaults)
        except EngineError as error:
            if error.param not in OWN:
                self._refused = name, submission, error
            raise
        self._commons[name] = common
        return common

    def _encoded(
        self, pending: Pending, sampling: SamplingParams, result: Encoded | BaseException
    ) -> None:
        name = pending.submission.request_id
        if self._encoding.get(name) is not pending or isinstance(result, ClosedError):
            return  # It was aborted, or all requests end, and `_end_all` notifies their owners.
        del self._encoding[name]
        if isinstance(result, BaseException):
            pending.refuse(result)
        else:
            try:
                self._admit(pending, sampling, result)
            except BaseException as error:
                pending.refuse(error)
        self._forward_load()

    def _admit(self, pending: Pending, sampling: SamplingParams, encoded: Encoded) -> None:
        assert self._processor is not None
        submission, token_ids = pending.submission, encoded.token_ids
        pending.stream.num_prompt_tokens = len(token_ids)
        stream, user = pending.stream, submission.origin.user
        num_messages = len(submission.messages) - (submission.num_partial is not None)
        self._processor.open(
            stream,
            sampling,
            num_messages,
            token_ids,
            user,
            encoded.num_partial,
            key=encoded.key,
            repeats_partial=submission.repeats_partial,
        )
        arrival, grammar = pending.arrival, encoded.grammar
        self._forward(
            lambda core: core.add_request(submission, token_ids, sampling, arrival, grammar)
        )

    def _abort(self, request_id: str) -> None:
        pending = self._pending.pop(request_id, None) or self._encoding.pop(request_id, None)
        if pending is None:
            self._forward(lambda core: core.abort(request_id))
            return
        pending.end(FinishReason.ABORT)
        self._forward_load()

    def _set_priority(self, request_id: str, priority: int) -> None:
        pending = self._pending.get(request_id) or self._encoding.get(request_id)
        if pending is not None:
            pending.submission = replace(pending.submission, priority=priority)
        else:
            self._forward(lambda core: core.set_priority(request_id, priority))

    def _describe(self, view: BlockView, tell: Callable[[BlockView], None]) -> None:
        if self._model is None:
            return
        try:
            words = self._model.codec.detokenizer()
            text = "".join(map(words.push, view.token_ids)) + words.flush()
        except BaseException:  # A panic of the tokenizer is not an Exception, and must end nothing.
            log.exception("block %d cannot be made text", view.number)
            text = ""
        tell(replace(view, text=text))

    def _process(self, outputs: list[TokenOutput], now: float) -> None:
        assert self._processor is not None
        for found in self._processor.process(outputs, now):
            self._forward(partial(_stop, found))

    def _read_calls(self, model: LoadedModel, ending: Ending) -> None:
        """Queue the reading of a reply's tool calls, and then end the reply."""

        def done(result: ToolUse | BaseException | None) -> None:
            tool_use = result if isinstance(result, ToolUse) else None
            self._post(partial(self._end_reply, ending, tool_use))

        read = partial(
            model.codec.read_calls,
            ending.context,
            ending.num_prompt,
            ending.tools,
            is_open=ending.is_open,
        )
        self._encodings.put(ending.user + _ENDINGS, Encoding(read, done), 0)

    def _end_reply(self, ending: Ending, tool_use: ToolUse | None) -> None:
        assert self._processor is not None
        self._processor.end(ending, tool_use)

    def _hold(self, request: LoadRequest) -> None:
        self._awaited = self._held_load = request
        self._holding = True
        self._prefixes.hold()
        self._tokenizing.refuse(UnavailableError("another model is being loaded"))
        self._refusal = None
        self._forward_load()

    def _forward_load(self) -> None:
        """Forward the load request, after all submissions before it."""
        if self._held_load is not None and not self._encoding:
            self._forward(self._held_load)
            self._held_load = None

    def _serve(self, model: LoadedModel, request: LoadRequest) -> None:
        if request is not self._awaited:
            return
        if self._processor is not None:
            self._processor.end_unread()
        self._model, self._refused = model, None
        read = partial(self._read_calls, model)
        self._processor = OutputProcessor(model.codec, self._abort, read)
        self._holding = False
        self._prefixes.serve(model)
        self._tokenizing.serve(model)
        pending, self._pending = self._pending, {}
        for entry in pending.values():
            self._encode(entry, model)

    def _refuse_until_loaded(self, error: EngineError, request: LoadRequest) -> None:
        if request is self._awaited:
            self._refusal = error
            self._tokenizing.refuse(error)
            pending, self._pending = self._pending, {}
            for entry in pending.values():
                entry.refuse(error)


def _stop(found: StopFound, core: EngineCore) -> None:
    core.stop(found)


def _checked(submission: Submission, model: LoadedModel, defaults: SamplingParams) -> Common:
    """Check a request's first reply, and make the state shared by all of its replies.

    Raises:
        EngineError: it is refused, before any time is spent on its encoding.
    """
    codec, most = model.codec, model.config.max_model_len
    sampling = defaults.override(submission.sampling)
    codec.check_token_ids(sampling.stop_token_ids, "stop_token_ids")
    arguments, size = sampling.template_arguments, 0
    if isinstance(submission.prompt, tuple):
        # Such a prompt is queued too, because it may be a fork of an earlier one.
        codec.check_count(len(submission.prompt), most)
        codec.check_token_ids(submission.prompt, "prompt")
    elif submission.prompt is not None:
        size = text_bytes(submission.prompt)
        codec.check_size(size, most)
    else:
        size = num_bytes(submission.messages) + (json_bytes(arguments) if arguments else 0)
        codec.check_size(size, most)
    if sampling.structure is not None:
        size += len(sampling.structure.source)
    return Common(submission, model, sampling, size)


def _encode(submission: Submission, codec: ChatCodec, sampling: SamplingParams) -> Encoded:
    """Encode a prompt and compile the grammar of its reply, on a thread that may wait for both."""
    arguments = sampling.template_arguments
    token_ids, num_partial = _prompt(submission, codec, arguments)
    grammar = None
    if sampling.structure is not None:
        chat = arguments if submission.prompt is None else None
        grammar = codec.grammar(sampling.structure, token_ids, num_partial, chat)
    return Encoded(token_ids, num_partial, grammar, context_key(codec.model_key, arguments))


def _prompt(
    submission: Submission, codec: ChatCodec, arguments: Mapping[str, object]
) -> tuple[list[int], int]:
    """Token ids, and how many of them, at the end, belong to a reply to continue."""
    if isinstance(submission.prompt, tuple):
        return list(submission.prompt), 0
    if submission.prompt is not None:
        return codec.encode_text(submission.prompt, is_whole=True), 0
    messages, context = submission.messages, submission.context
    if submission.num_partial is None:
        return codec.encode(messages, context, arguments), 0
    return codec.encode_continuation(messages, context, submission.num_partial, arguments)
