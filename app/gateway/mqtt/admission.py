"""Admission: whether a request may come in."""

from __future__ import annotations

from app.gateway.faults import Fault
from app.gateway.mqtt.exchanges import Exchanges
from app.gateway.mqtt.node import Node
from app.gateway.mqtt.protocol.requests import ChatRequest
from app.gateway.mqtt.settings import MqttSettings
from app.gateway.quotas import Quotas
from engine.api.client import EngineClient
from engine.api.status import EnginePhase


class Admission:
    """Checks by what the server has room for and what it serves now.

    Each check raises a `Fault` that says why not.
    """

    def __init__(
        self,
        client: EngineClient,
        settings: MqttSettings,
        exchanges: Exchanges,
        quotas: Quotas,
        node: Node,
    ) -> None:
        self._client = client
        self._settings = settings
        self._exchanges = exchanges
        self._quotas = quotas
        self._node = node

    def check_size(self, payload: bytes) -> None:
        """Whether a request is not too large to be read."""
        size, most = len(payload), self._settings.max_request_bytes
        if size > most:
            text = f"the request has {size} bytes; at most {most} are allowed"
            raise Fault(413, text, reason="too large")

    def check_room(self, user: str) -> None:
        """Whether a new request of this user may come in now, whatever it asks."""
        status = self._client.status()
        if self._node.draining:
            raise Fault(503, "the server is draining; it takes no new requests", reason="draining")
        if status.phase in (EnginePhase.FAILED, EnginePhase.STOPPED, EnginePhase.EMPTY):
            text = f"no model is loaded{f': {status.detail}' if status.detail else ''}"
            raise Fault(503, text, reason="no model")
        depth, most = self._exchanges.num_waiting, self._node.queue_limit
        if depth >= most:
            text = f"the queue is full, {depth} requests wait and at most {most} may"
            raise self._quotas.overloaded(text, "queue full", depth=depth)
        running, most = len(self._exchanges), self._settings.max_requests
        if running >= most:
            text = f"{running} requests are unfinished and at most {most} may be"
            raise self._quotas.overloaded(text, "server full", depth=depth)
        self._quotas.check(user)

    def check_model(self, request: ChatRequest) -> None:
        """Whether the model is served that a request asks for."""
        status = self._client.status()
        if request.model is not None and status.phase is not EnginePhase.READY:
            # What comes now is for the next one, whose name is told once it is there.
            text = f"model is {request.model!r}, and the server is changing models"
            raise Fault(503, text, "model", reason="changing models")
        if request.model is not None and request.model != status.model:
            text = f"model is {request.model!r}; {status.model!r} is the one that is served here"
            raise Fault(404, text, "model", reason="another model")
