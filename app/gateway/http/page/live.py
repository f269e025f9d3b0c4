"""Live: /live, the engine's state as a stream of events."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from app.gateway.http.body import until_gone
from app.gateway.http.endpoint import Endpoint
from app.gateway.http.page.frame import encoded
from app.gateway.http.page.live_feed import LiveFeed
from app.gateway.http.page.visitors import Visitor, Visitors
from app.gateway.http.service import Service
from app.system.versions import version
from engine.api.knobs import KNOB_SPECS

_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",
}


class Live(Endpoint):
    """A greeting that identifies the viewer, then the engine's state, four times a second."""

    def __init__(self, service: Service, visitors: Visitors, feed: LiveFeed) -> None:
        super().__init__(service)
        self._visitors = visitors
        self._feed = feed

    async def answer(self, request: Request, send: Send) -> Response | None:
        visitor = self._visitors.visitor(request)
        with self._feed.place(visitor.who, visitor.is_operator):
            return await self._listen(request, send, visitor)

    async def _listen(self, request: Request, send: Send, visitor: Visitor) -> Response | None:
        if request.method == "HEAD":
            return Response(headers=_HEADERS)
        headers = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        gone = asyncio.create_task(until_gone(request))
        try:
            hello = _greeting(visitor) | {"sampling": sorted(self.service.sampling)}
            await send(_event(b"hello", encoded(hello)))
            async with aclosing(self._feed.events(visitor.is_operator)) as events:
                async for event in events:
                    if gone.done():
                        return None
                    await send(_event(b"frame", event))
        finally:
            gone.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return None


def _greeting(visitor: Visitor) -> dict[str, object]:
    specs = {
        spec.name: {"meaning": spec.meaning, "unit": spec.unit, "step": spec.step}
        for spec in KNOB_SPECS
    }
    return {
        "user": visitor.user,
        "operator": visitor.is_operator,
        "version": version("batchdeck") or "unknown",
        "knobs": specs,
    }


def _event(kind: bytes, data: bytes) -> dict[str, object]:
    body = b"event: " + kind + b"\ndata: " + data + b"\n\n"
    return {"type": "http.response.body", "body": body, "more_body": True}
