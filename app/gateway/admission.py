"""Admission: checks whether a request may come in."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from app.gateway.faults import Fault, doing
from app.gateway.quotas import Quotas
from engine.api.client import EngineClient
from engine.api.status import EnginePhase

# The fault reason for a request for a model that is not served.
ANOTHER_MODEL = "another model"


class Standing(NamedTuple):
    """The load of a gateway.

    Attributes:
        draining: whether it accepts nothing new.
        queue_limit: most requests without a first token.
        waiting: the number of requests without a first token.
        running: the number of unfinished requests.
    """

    draining: bool
    queue_limit: int
    waiting: int
    running: int


class Admission:
    """Checks requests against the server's limits, and against the model that it serves now.

    Each check raises a `Fault` that says why not.

    Args:
        max_request_bytes: size limit of a request.
        max_requests: most unfinished requests of all users together.
        standing: returns the gateway's load.
    """

    def __init__(
        self,
        client: EngineClient,
        *,
        max_request_bytes: int,
        max_requests: int,
        quotas: Quotas,
        standing: Callable[[], Standing],
    ) -> None:
        self._client = client
        self._max_request_bytes = max_request_bytes
        self._max_requests = max_requests
        self._quotas = quotas
        self._standing = standing

    def check_size(self, size: int) -> None:
        """Check that a request of `size` bytes is not too large to be read."""
        if size > self._max_request_bytes:
            text = f"the request has {size} bytes; at most {self._max_request_bytes} are allowed"
            raise Fault(413, text, reason="too large")

    def check_open(self) -> None:
        """Check that the server accepts requests at all."""
        status = self._client.status()
        if self._standing().draining:
            raise Fault(503, "the server is draining; it takes no new requests", reason="draining")
        if status.phase in (EnginePhase.FAILED, EnginePhase.STOPPED, EnginePhase.EMPTY):
            raise Fault(503, f"no model is loaded: {doing(status)}", reason="no model")

    def check_room(self, user: str, count: int = 1) -> None:
        """Check that this user may send `count` new requests now, whatever their content."""
        self.check_open()
        standing = self._standing()
        depth, most = standing.waiting, standing.queue_limit
        if depth >= most:
            text = f"the queue is full, {depth} requests wait and at most {most} may"
            raise self._quotas.overloaded(text, "queue full", depth=depth)
        running, most = standing.running, self._max_requests
        if running + count > most:
            text = f"{running} requests are unfinished and at most {most} may be"
            raise self._quotas.overloaded(text, "server full", depth=depth)
        self._quotas.check(user, count)

    def check_model(self, model: str | None, also: frozenset[str] = frozenset()) -> None:
        """Check that the requested model is served.

        Args:
            model: as the request states it; None if it does not.
            also: further names for the served model; `*` is any.
        """
        status = self._client.status()
        if model is not None and status.phase is not EnginePhase.READY:
            # The request is for the next model, whose name is known once it is loaded.
            text = f"model is {model!r}, and the server is changing models"
            raise Fault(503, text, "model", reason="changing models")
        if model not in (None, status.model) and not also & {model, "*"}:
            text = f"model is {model!r}; {status.model!r} is the one that is served here"
            raise Fault(404, text, "model", reason=ANOTHER_MODEL)
