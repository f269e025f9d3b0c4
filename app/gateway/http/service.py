"""Service: what the endpoints of the HTTP gateway have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import Request

from app.gateway.admission import Admission
from app.gateway.faults import Fault
from app.gateway.http.access import Access
from app.gateway.http.body import read_body
from app.gateway.http.exchanges import Exchanges
from app.gateway.http.protocol.told import T, read
from app.gateway.quotas import Quotas
from app.gateway.tally import Tally
from engine.api.client import EngineClient
from engine.api.errors import EngineError
from engine.api.status import EnginePhase


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The parts of a gateway that requests go through.

    Attributes:
        names: further names under which the loaded model is asked for; `*` is any.
        sampling: for what a request leaves open, over the model's defaults.
    """

    client: EngineClient
    access: Access
    admission: Admission
    quotas: Quotas
    exchanges: Exchanges
    tally: Tally
    names: frozenset[str]
    sampling: Mapping[str, object]

    async def take(self, request: Request, kind: type[T]) -> tuple[str, T]:
        """Who asks, and what.

        Raises:
            Fault: the request is refused.
            ClientDisconnect: the client has gone.
        """
        user = self.access.caller(request.headers)
        self.admission.check_room(user)
        body = await read_body(request, self.admission.check_size)
        try:
            return user, read(kind, body)
        except Fault as fault:
            self.tally.bad(f"{request.method} {request.url.path}", body, fault.code, fault.message)
            raise

    def model(self, asked: str | None) -> str:
        """The name under which a model is asked for, or its own where none is stated.

        Raises:
            Fault: it is not served, or no model is there now.
        """
        status = self.client.status()
        if status.phase is not EnginePhase.READY:
            text = f"no model is ready: {status.detail or status.phase.value}"
            raise Fault(503, text, reason="no model", retry_after_ms=2000)
        self.admission.check_model(asked, self.names)
        return asked or status.model


def fault_of(error: EngineError) -> Fault:
    """What an error of the engine is to a client."""
    return Fault.of(error.info())
