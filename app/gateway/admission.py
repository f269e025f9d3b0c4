"""Admission: whether a request may come in."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from app.gateway.faults import Fault, doing
from app.gateway.quotas import Quotas
from engine.api.client import EngineClient
from engine.api.status import EnginePhase

# The reason of the fault of a request for a model that is not served.
ANOTHER_MODEL = "another model"


class Standing(NamedTuple):
    """How a gateway stands.

    Attributes:
        draining: whether it takes nothing new.
        queue_limit: most requests without a first token.
        waiting: how many there are of these.
        running: all requests that have not ended.
    """

    draining: bool
    queue_limit: int
    waiting: int
    running: int


class Admission:
    """Checks by what the server has room for and what it serves now.

    Each check raises a `Fault` that says why not.

    Args:
        max_request_bytes: of the largest request that is read.
        max_requests: most unfinished requests, those of all users together.
        standing: how the gateway stands now.
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
        """Whether a request of so many bytes is not too large to be read."""
        if size > self._max_request_bytes:
            text = f"the request has {size} bytes; at most {self._max_request_bytes} are allowed"
            raise Fault(413, text, reason="too large")

    def check_open(self) -> None:
        """Whether anything is taken in."""
        status = self._client.status()
        if self._standing().draining:
            raise Fault(503, "the server is draining; it takes no new requests", reason="draining")
        if status.phase in (EnginePhase.FAILED, EnginePhase.STOPPED, EnginePhase.EMPTY):
            raise Fault(503, f"no model is loaded: {doing(status)}", reason="no model")

    def check_room(self, user: str, count: int = 1) -> None:
        """Whether so many new requests of this user may come in now, whatever they ask."""
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
        """Whether the model is served that a request asks for.

        Args:
            model: as the request states it; None if it does not.
            also: further names under which the one that is served is known; `*` is any.
        """
        status = self._client.status()
        if model is not None and status.phase is not EnginePhase.READY:
            # What comes now is for the next one, whose name is told once it is there.
            text = f"model is {model!r}, and the server is changing models"
            raise Fault(503, text, "model", reason="changing models")
        if model not in (None, status.model) and not also & {model, "*"}:
            text = f"model is {model!r}; {status.model!r} is the one that is served here"
            raise Fault(404, text, "model", reason=ANOTHER_MODEL)
