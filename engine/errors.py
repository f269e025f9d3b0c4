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


class EngineError(Exception):
    """Base of every error the engine raises on purpose."""

    type: ClassVar[str] = "engine_error"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def info(self) -> ErrorInfo:
        return ErrorInfo(self.type, self.message, self.param)


class InvalidRequestError(EngineError):
    """The request can never be served as it stands; the fault is the caller's."""

    type = "invalid_request_error"


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


class ModelError(EngineError):
    """A model is unknown, broken, unsupported, or does not fit in memory."""

    type = "model_error"
