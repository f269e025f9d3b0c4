"""AnthropicEndpoint: an endpoint whose errors have the form that Anthropic's clients know."""

from __future__ import annotations

from app.gateway.faults import Fault
from app.gateway.http.endpoint import Endpoint

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


class AnthropicEndpoint(Endpoint):
    """Distinguishes a caller over its own limits (429) from an overloaded server (529)."""

    def error(self, fault: Fault) -> dict[str, object]:
        return anthropic_error(fault)

    def status(self, fault: Fault) -> int:
        return 529 if _is_overload(fault) else super().status(fault)


def anthropic_error(fault: Fault) -> dict[str, object]:
    """An error in the shape that Anthropic's clients know. Its message names the fault in a
    request.
    """
    kind = _TYPES.get(529 if _is_overload(fault) else fault.code, "api_error")
    return {"type": "error", "error": {"type": kind, "message": fault.message}}


def _is_overload(fault: Fault) -> bool:
    return fault.code == 429 and not fault.reason.startswith("user ")
