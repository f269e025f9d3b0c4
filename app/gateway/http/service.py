"""Service: the shared components of the HTTP gateway's endpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from starlette.requests import Request

from app.gateway.admission import Admission
from app.gateway.faults import Fault, doing
from app.gateway.http.access import Access, Pages
from app.gateway.http.body import read_body, unless_gone
from app.gateway.http.exchanges import Exchanges
from app.gateway.http.protocol.payload import T, read
from app.gateway.quotas import Quotas
from app.gateway.sources import HTTP, salt_of
from app.gateway.tally import Tally
from engine.api.client import EngineClient
from engine.api.status import EnginePhase

P = TypeVar("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The components of a gateway that requests pass through.

    Attributes:
        names: further names for the loaded model; `*` is any.
        sampling: for fields that a request leaves open, over the model's defaults.
        separate_caches: whether users do not find each other's prefixes in the cache.
    """

    client: EngineClient
    access: Access
    pages: Pages
    admission: Admission
    quotas: Quotas
    exchanges: Exchanges
    tally: Tally
    names: frozenset[str]
    sampling: Mapping[str, object]
    separate_caches: bool

    def asker(self, request: Request) -> str:
        """The name of the caller.

        Raises:
            Fault: they may not send requests.
        """
        user = self.access.caller(request.headers)
        self.pages.check_asker(request)
        return user

    async def read_request(self, request: Request, kind: type[T]) -> tuple[str, T]:
        """Read a request; returns its caller and its body.

        Raises:
            Fault: the request is refused.
            ClientDisconnect: the client has gone.
        """
        user = self.asker(request)
        self.admission.check_room(user)
        body = await read_body(request, self.admission.check_size)
        try:
            return user, read(kind, body)
        except Fault as fault:
            self.tally.bad(f"{request.method} {request.url.path}", body, fault.code, fault.message)
            raise

    @contextmanager
    def counted(self, user: str) -> Iterator[None]:
        """Count the block as one of the user's unfinished requests.

        Raises:
            Fault: there may not be another one.
        """
        self.admission.check_room(user)
        self.quotas.opened(user)
        try:
            yield
        finally:
            self.quotas.ended(user)

    async def promised(self, request: Request, promise: Future[P]) -> P:
        """Await a result of the engine for a request.

        Raises:
            EngineError: there is none.
            ClientDisconnect: the client has gone, and the result is cancelled.
        """
        return await unless_gone(request, asyncio.wrap_future(promise))

    def salt(self, user: str, stated: str | None) -> str:
        """As `salt_of`, with the gateway's settings."""
        return salt_of(HTTP, user, stated, separate=self.separate_caches)

    @property
    def max_model_len(self) -> int:
        """The loaded model's context length in tokens.

        Raises:
            Fault: no model is loaded now.
        """
        snapshot = self.client.snapshot()
        if snapshot is None:
            raise Fault(503, "no model is loaded", reason="no model")
        return snapshot.model.max_model_len

    def model(self, asked: str | None) -> str:
        """The requested name of the model, or its own if none is stated.

        Raises:
            Fault: it is not served, or no model is loaded now.
        """
        status = self.client.status()
        if status.phase is not EnginePhase.READY:
            text = f"no model is ready: {doing(status)}"
            raise Fault(503, text, reason="no model", retry_after_ms=2000)
        asked = asked or None  # Some clients send "" for none.
        self.admission.check_model(asked, self.names)
        return asked or status.model
