"""What can go wrong: every refusal is one sentence with the field, the value and the range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """An error as plain data, in the shape that OpenAI clients know.

    Attributes:
        type: the class of failure, for programs (`invalid_request_error`, `overloaded_error`, ...).
        message: one sentence for a person.
        param: the field at fault, if one is.
    """

    type: str
    message: str
    param: str | None = None


# A longer message is cut. This is far more than a sentence takes, but some quote a value or a name
# that may be as long as a file. The end is kept, because it says what is allowed.
_LONGEST = 4000
_END = 500


class EngineError(Exception):
    """Base of every error the engine raises on purpose.

    Attributes:
        message: one line, in which characters that do not print are escaped as by Python's repr. It
            may quote names that strangers chose (of a tensor, a key, a file), and a terminal obeys
            the control characters that it gets.
        param: the field at fault, if one is.
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

    Clients know it by its type and shorten their chats, so it is no other error of a request.
    """

    type = "context_length_error"


class InvalidConfigError(EngineError):
    """An engine setting or a knob lies outside what is allowed."""

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
    """The device computes nothing any more in this process, or every step on it fails. Only a new
    start of the program helps.
    """


class ModelError(EngineError):
    """A model is unknown, broken, unsupported, or does not fit in memory."""

    type = "model_error"


# Some libraries quote what they were given, whole files among them.
_LONGEST_CAUSE = 300


def cause_of(error: BaseException) -> str:
    """An exception that is not ours, on one line for the end of a sentence: its type, and its text
    if it has one."""
    kind, text = type(error).__name__, " ".join(str(error).split())
    if len(text) > _LONGEST_CAUSE:
        text = f"{text[:_LONGEST_CAUSE]}…"
    return f"{kind}: {text}" if text else kind
