"""BatchRequest and BatchQuery: requests to /v1/batches."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from app.gateway.http.protocol.batch_line import ENDPOINTS_ALLOWED, BatchEndpoint
from app.gateway.http.protocol.file_requests import DAY, KEPT_SECONDS, Expiry, expiry_allowed
from app.gateway.http.protocol.payload import PAIR_ALLOWED, PAIRS_ALLOWED, Pairs, Payload
from app.gateway.stated import Name

MAX_BATCHES = 100


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
    def keep_seconds(self) -> int:
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
