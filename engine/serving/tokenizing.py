"""Tokenizing: token ids of arbitrary text, and text of token ids; belongs to the text thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import TypeVar

from engine.api.client import ChatMessage
from engine.api.errors import EngineError, InvalidRequestError, UnavailableError, cause_of
from engine.api.tools import json_bytes
from engine.serving.loading import LoadedModel
from engine.text.codec import ChatCodec
from engine.text.encodings import Encoding, Encodings
from engine.text.job import num_bytes, text_bytes

log = logging.getLogger(__name__)

T = TypeVar("T")


class Tokenizing:
    """Tokenizes and detokenizes with the tokenizer of the model that is served.

    Texts to tokenize share the encoding queue with the users' prompts. Each future gets its result
    on the text thread, unless its owner has cancelled it.

    Args:
        encodings: the encoding queue.
        post: makes the text thread call something.
    """

    def __init__(self, encodings: Encodings, post: Callable[[Callable[[], None]], object]) -> None:
        self._encodings = encodings
        self._post = post
        self._model: LoadedModel | None = None
        self._reason: EngineError = UnavailableError("no model is loaded")
        self._open: dict[Future[list[int]], None] = {}

    def serve(self, model: LoadedModel) -> None:
        """A model is loaded."""
        self._model = model

    def refuse(self, error: EngineError) -> None:
        """No model is loaded: new calls get the error. Those in progress may still succeed."""
        self._model, self._reason = None, error

    def close(self, error: EngineError) -> None:
        """The queue is closed: all waiting futures get the error."""
        for future in self._open:
            _settle(future, error)
        self._open.clear()

    def tokenize(
        self,
        prompt: str | tuple[ChatMessage, ...],
        sampling: Mapping[str, object],
        add_special_tokens: bool,
        user: str,
        future: Future[list[int]],
    ) -> None:
        """See `EngineClient.tokenize`."""
        if (model := self._model) is None:
            _settle(future, self._reason)
            return
        try:
            if isinstance(prompt, str):
                size = text_bytes(prompt)
                read = partial(model.codec.encode_text, prompt, is_whole=add_special_tokens)
            else:
                arguments = model.card.sampling.override(sampling).template_arguments
                size = num_bytes(prompt) + (json_bytes(arguments) if arguments else 0)
                read = partial(_encode, model.codec, prompt, arguments)
        except BaseException as error:
            _settle(future, error)
            return

        def encode() -> list[int]:
            return [] if future.cancelled() else read()

        def done(result: list[int] | BaseException) -> None:
            self._post(partial(self._tokenized, future, result))

        self._open[future] = None
        self._encodings.put(user, Encoding(encode, done), size)

    def _tokenized(self, future: Future[list[int]], result: list[int] | BaseException) -> None:
        if future in self._open:
            del self._open[future]
            _settle(future, result)

    def detokenize(self, token_ids: Sequence[int], future: Future[str]) -> None:
        """See `EngineClient.detokenize`."""
        self._make(token_ids, future, lambda codec: codec.decode(token_ids))

    def spell(self, token_ids: Sequence[int], future: Future[list[str]]) -> None:
        """See `EngineClient.spell`."""
        self._make(
            token_ids,
            future,
            lambda codec: [codec.utf8(one).decode(errors="replace") for one in token_ids],
        )

    def _make(
        self, token_ids: Sequence[int], future: Future[T], make: Callable[[ChatCodec], T]
    ) -> None:
        """Convert token ids on this thread; their number is limited, because all replies wait."""
        if (model := self._model) is None:
            _settle(future, self._reason)
            return
        try:
            if len(token_ids) > (most := model.config.max_model_len):
                text = f"tokens has {len(token_ids)} entries; at most {most} are allowed, those of"
                raise InvalidRequestError(f"{text} the context", "tokens")
            model.codec.check_token_ids(token_ids, "tokens")
            made = make(model.codec)
        except BaseException as error:
            _settle(future, error)
        else:
            _settle(future, made)


def _encode(
    codec: ChatCodec, messages: Sequence[ChatMessage], arguments: Mapping[str, object]
) -> list[int]:
    if messages and messages[-1].role == "assistant":
        return codec.encode_continuation(messages, None, 0, arguments)[0]
    return codec.encode(messages, None, arguments)


def _settle(future: Future[T], result: T | BaseException) -> None:
    """Resolve a future. An unexpected error comes from the model's own code."""
    with suppress(InvalidStateError):  # Its owner has cancelled it.
        if not isinstance(result, BaseException):
            future.set_result(result)
        elif isinstance(result, EngineError):
            future.set_exception(result)
        else:
            log.error("a tokenizer failed", exc_info=result)
            why = f"the tokenizer failed: {cause_of(result)}"
            future.set_exception(InvalidRequestError(why, "prompt"))
