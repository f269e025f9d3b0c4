"""Prefixes: pins by name, from request to engine; belongs to the text thread."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from engine.api.client import ChatMessage
from engine.serving.loading import LoadedModel
from engine.serving.mail import Mail
from engine.text.encodings import Encoding, Encodings
from engine.text.job import num_bytes

log = logging.getLogger(__name__)

_USER = ""  # no user has this name


class Prefixes:
    """The prefixes to pin. Each new model gets all of them.

    Args:
        encodings: the encoding queue, shared with the users' prompts.
        post: makes the text thread call something.
        forward: sends mail to the engine thread.
    """

    def __init__(
        self,
        encodings: Encodings,
        post: Callable[[Callable[[], None]], object],
        forward: Callable[[Mail], None],
    ) -> None:
        self._encodings = encodings
        self._post = post
        self._forward = forward
        self._model: LoadedModel | None = None
        self._wanted: dict[str, tuple[ChatMessage, ...]] = {}

    def hold(self) -> None:
        """Another model is wanted: send no pins until it is loaded."""
        self._model = None

    def serve(self, model: LoadedModel) -> None:
        """A model is loaded: send it all pins."""
        self._model = model
        for name, messages in self._wanted.items():
            self._encode(name, messages, model)

    def pin(self, name: str, messages: tuple[ChatMessage, ...]) -> None:
        self._wanted[name] = messages
        if self._model is not None:
            self._encode(name, messages, self._model)

    def unpin(self, name: str) -> None:
        if self._wanted.pop(name, None) is not None:
            self._forward(lambda core: core.pins.unpin(name))

    def _encode(self, name: str, messages: tuple[ChatMessage, ...], model: LoadedModel) -> None:
        def done(result: list[int] | BaseException) -> None:
            self._post(partial(self._encoded, name, messages, model, result))

        arguments = model.card.sampling.template_arguments
        encoding = Encoding(partial(model.codec.common_prefix, messages, arguments), done)
        self._encodings.put(_USER, encoding, num_bytes(messages))

    def _encoded(
        self,
        name: str,
        messages: tuple[ChatMessage, ...],
        model: LoadedModel,
        result: list[int] | BaseException,
    ) -> None:
        if self._model is not model or self._wanted.get(name) is not messages:
            return  # A new model gets all current pins.
        if isinstance(result, BaseException):
            log.warning("the prefix %s cannot be pinned: %s", name, result)
            reason = f"it cannot be read: {result}"
            self._forward(lambda core: core.pins.refuse(name, reason))
        else:
            self._forward(lambda core: core.pins.pin(name, result))
