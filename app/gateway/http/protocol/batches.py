"""BatchRequest, BatchQuery and BatchLine: requests to /v1/batches, and the lines of their files."""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from app.gateway.http.protocol.file_requests import DAY, KEPT_SECONDS, Expiry, expiry_allowed
from app.gateway.http.protocol.payload import PAIR_ALLOWED, PAIRS_ALLOWED, Pairs, Payload
from app.gateway.stated import MAX_TEXT, Id, Name

MAX_BATCHES = 100
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


class BatchRequest(Payload):
    """A request to answer a file of requests."""

    ALLOWED: ClassVar[dict[str, str]] = {
        "input_file_id": "text, the id of a file of purpose batch",
        "endpoint": ENDPOINTS_ALLOWED,
        "completion_window": "24h",
        "metadata": PAIRS_ALLOWED,
        "metadata.*": PAIR_ALLOWED,
        **expiry_allowed("output_expires_after"),
    }

    input_file_id: Name
    endpoint: BatchEndpoint
    completion_window: Literal["24h"]
    metadata: Pairs | None = None
    output_expires_after: Expiry | None = None

    @property
    def seconds(self) -> int:
        """Seconds after which unanswered requests become errors."""
        return DAY

    @property
    def retention_seconds(self) -> int:
        """Seconds for which answers are kept."""
        expiry = self.output_expires_after
        return KEPT_SECONDS if expiry is None else expiry.seconds


class BatchQuery(Payload):
    """The batches to list.

    Attributes:
        after: the id of the batch before the first one.
    """

    ALLOWED: ClassVar[dict[str, str]] = {
        "after": "text, the id of a batch",
        "limit": f"an integer from 1 to {MAX_BATCHES}",
    }

    after: Name | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_BATCHES)] = 20
