"""Fault: why a request is refused or failed, in the form that all gateways share."""

from __future__ import annotations

from engine.api.errors import ErrorInfo, ModelError
from engine.api.status import EnginePhase, EngineStatus

MAX_MESSAGE = 500

# The sentence itself names files, which clients must not see.
_FAILED = "the server's log says why"

# The error type of each code, in OpenAI's words where it has one.
TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "deadline_error",
    409: "conflict_error",
    413: "too_large_error",
    429: "overloaded_error",
    499: "cancelled_error",
    500: "engine_error",
    503: "unavailable_error",
}
RETRYABLE = frozenset({429, 500, 503})

_CODES = {
    "invalid_request_error": 400,
    "context_length_error": 400,
    "invalid_config_error": 400,
    "deadline_error": 408,
    "overloaded_error": 429,
    "unavailable_error": 503,
    "model_error": 503,
    "restarted": 503,
}
# Errors with a code at OpenAI, upon which clients shorten their chats.
_REASONS = {"context_length_error": "context length exceeded"}
# Parameters that have other names in the engine than in requests.
_PARAMS = {"prompt": "messages", "deadline": "deadline_ms"}


class Fault(Exception):  # noqa: N818 - a word of the protocols
    """Ends a request with an error.

    Args:
        code: one of `TYPES`, which determines the type.
        message: one sentence. One longer than `MAX_MESSAGE` characters loses its middle.
        param: the field of the request at fault, as a dotted path; None if no field is.
        reason: the kind of fault in a few words, for counting; by default it follows from the type.
        retryable: whether the same request may succeed later; None derives it from the code.
        retry_after_ms: milliseconds until the request may succeed; None if not known.
        queue_depth: the number of waiting requests, if that is why it was refused.
    """

    def __init__(
        self,
        code: int,
        message: str,
        param: str | None = None,
        *,
        reason: str = "",
        retryable: bool | None = None,
        retry_after_ms: int | None = None,
        queue_depth: int | None = None,
    ) -> None:
        if len(message) > MAX_MESSAGE:
            # The beginning names field and value, and the end says what is allowed.
            half = MAX_MESSAGE // 2 - 1
            message = f"{message[:half]}…{message[-half:]}"
        super().__init__(message)
        self.code = code
        self.type = TYPES[code]
        self.message = message
        self.param = param
        self.reason = reason or self.type.removesuffix("_error").replace("_", " ")
        self.retryable = code in RETRYABLE if retryable is None else retryable
        self.retry_after_ms = retry_after_ms
        self.queue_depth = queue_depth

    @classmethod
    def of(cls, info: ErrorInfo) -> Fault:
        """The fault for an error of the engine or the journal. An unknown type becomes an engine
        error."""
        param = None if info.param is None else _PARAMS.get(info.param, info.param)
        code, reason = _CODES.get(info.type, 500), _REASONS.get(info.type, "")
        message = info.message
        if info.type == ModelError.type:
            message = f"no model is loaded: {_FAILED}"
        return cls(code, message, param, reason=reason)


def doing(status: EngineStatus) -> str:
    """The engine's activity while no model is ready, in words that clients may read."""
    match status.phase:
        case EnginePhase.FAILED:
            return _FAILED
        case EnginePhase.DRAINING:
            return "another model is to be loaded"
        case EnginePhase.LOADING if status.detail:
            return status.detail
    return str(status.phase)
