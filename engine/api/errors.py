"""Errors: every refusal is one sentence with the field, the value and the range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """An error as plain data, in the form that OpenAI clients know.

    Attributes:
        type: the class of failure, for programs (`invalid_request_error`, `overloaded_error`, ...).
        message: one sentence for a person.
        param: the field at fault, if there is one.
    """

    type: str
    message: str
    param: str | None = None


# A longer message is shortened. No sentence needs as much, but some quote a value or a name as long
# as a file. The end is kept, because it says what is allowed.
_LONGEST = 4000
_END = 500


class EngineError(Exception):
    """Base of every error that the engine raises on purpose.

    Attributes:
        message: one line, with non-printing characters escaped as by Python's repr. It may quote
            names from strangers (of a tensor, a key, a file), and a terminal obeys control
            characters.
        param: the field at fault, if there is one.
    """

    type: ClassVar[str] = "engine_error"

    def __init__(self, message: str, param: str | None = None) -> None:
        self.message = _harmless(message)
        super().__init__(self.message)
        self.param = param

    def info(self) -> ErrorInfo:
        return ErrorInfo(self.type, self.message, self.param)


def _harmless(text: str) -> str:
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST - _END]}…{text[-_END:]}"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class InvalidRequestError(EngineError):
    """The request can never be served as it stands; the fault is the caller's."""

    type = "invalid_request_error"


class ContextLengthError(InvalidRequestError):
    """Prompt and reply have more tokens than the context, or all of the KV cache.

    Clients know it by its type and shorten their chats, so no other error uses it.
    """

    type = "context_length_error"


class InvalidConfigError(EngineError):
    """An engine setting or a knob is out of range."""

    type = "invalid_config_error"


class OverloadedError(EngineError):
    """The request could be served, but not now: the queue is full."""

    type = "overloaded_error"


class DeadlineError(EngineError):
    """The request's deadline passed while it waited."""

    type = "deadline_error"


class UnavailableError(EngineError):
    """The engine is shutting down, or no model could be loaded."""

    type = "unavailable_error"


class DeviceLostError(UnavailableError):
    """The device no longer computes in this process, or every step on it fails. Only a restart of
    the program helps.
    """


class ModelError(EngineError):
    """A model is unknown, broken, unsupported, or does not fit in memory."""

    type = "model_error"


# Some libraries quote their input, even whole files.
_LONGEST_CAUSE = 300


def cause_of(error: BaseException) -> str:
    """A foreign exception on one line for the end of a sentence: its type, and its text if any."""
    kind, text = type(error).__name__, " ".join(str(error).split())
    if len(text) > _LONGEST_CAUSE:
        text = f"{text[:_LONGEST_CAUSE]}…"
    return f"{kind}: {text}" if text else kind
