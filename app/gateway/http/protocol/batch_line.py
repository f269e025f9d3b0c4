"""BatchLine: one request of a file, in OpenAI's batch format."""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from app.gateway.http.protocol.payload import Payload
from app.gateway.stated import MAX_TEXT, Id

BatchEndpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/responses"]
ENDPOINTS_ALLOWED = "/v1/chat/completions, /v1/completions or /v1/responses"


class BatchLine(Payload):
    """One request of a file.

    Attributes:
        custom_id: identifies its answer.
        url: the request's endpoint.
        body: the request's body.
    """

    ALLOWED: ClassVar[dict[str, str]] = {
        "custom_id": "text",
        "method": "POST",
        "url": ENDPOINTS_ALLOWED,
        "body": "an object, the request",
    }

    custom_id: Id
    method: Literal["POST"] = "POST"
    url: BatchEndpoint
    body: Annotated[dict[str, Any], Field(max_length=MAX_TEXT)]


def custom_id_of(line: bytes) -> str | None:
    """The id of a request or of its answer; None if it has none, or one that is invalid Unicode."""
    try:
        payload = json.loads(line)
        name = payload.get("custom_id") if isinstance(payload, dict) else None
        if isinstance(name, str):
            name.encode()
            return name
    except (ValueError, RecursionError):
        pass
    return None
