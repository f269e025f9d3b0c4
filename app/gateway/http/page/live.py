"""Live and LiveKnobs: /live, the engine's state as a stream of events, and who may change knobs."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from app.gateway.control import Control
from app.gateway.faults import Fault
from app.gateway.http.access import Access, Pages, is_loopback
from app.gateway.http.body import read_body, until_gone
from app.gateway.http.endpoint import Endpoint
from app.gateway.http.page.frame import encoded
from app.gateway.http.page.live_feed import LiveFeed
from app.gateway.http.service import Service
from app.system.versions import version
from engine.api.errors import ErrorInfo
from engine.api.glossary import GLOSSES, gloss, glosses
from engine.api.knobs import KNOB_SPECS

EVENT_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",
}
# The explanation of each figure, by its name on the page.
PAGE_GLOSSES = {
    **glosses(
        *("running", "waiting", "prefill", "decode", "step", "preempted", "queue", "TTFT", "TPOT"),
        *("ITL", "E2E", "p50", "p99", "n", "prompt"),
        *("used", "shared", "reserved", "pinned", "cached", "free"),
    ),
    "output tok/s": GLOSSES["tok/s"],
    "prompt tok/s": f"the same of prompts; prefill: {GLOSSES['prefill']}",
    "KV used": GLOSSES["KV"],
    "prefix hits": GLOSSES["prefix hit"],
    "TTFT p50": gloss("TTFT", "p50"),
    "TPOT p50": gloss("TPOT", "p50"),
    "ITL p99": gloss("ITL", "p99"),
    "out": GLOSSES["tok"],
    "blocks": GLOSSES["blk"],
    "goodput": GLOSSES["good"],
}
# The limit of a message over MQTT: all knobs at once take 2 KiB.
MAX_BYTES = 1 << 16


class Visitor(NamedTuple):
    """A caller.

    Attributes:
        is_operator: whether they may see other users' requests, and change the knobs.
        who: the owner of their places: the user, or the address if there are no keys.
    """

    user: str
    is_operator: bool
    who: str


class Visitors:
    """Identifies visitors by their keys; without keys, by the page that they came from."""

    def __init__(self, access: Access, pages: Pages) -> None:
        self._access = access
        self._pages = pages

    def visitor(self, request: Request) -> Visitor:
        """Identify the caller.

        Raises:
            Fault: 401, the key is missing or wrong; 403, another page than ours sent the request.
        """
        user = self._access.caller(request.headers)
        if not self._access.is_open:
            return Visitor(user, user in self._access.operators, user)
        self._pages.check_own(request)
        host = "" if request.client is None else request.client.host
        return Visitor(user, is_loopback(host), host)

    def operator(self, request: Request) -> str:
        """The name of the caller, who must be an operator.

        Raises:
            Fault: as in `visitor`; or 403, the caller is no operator.
        """
        visitor = self.visitor(request)
        if visitor.is_operator:
            return visitor.user
        if self._access.is_open:
            text = "without keys, knobs can be changed from this machine only"
        else:
            text = f"user {visitor.user!r} may not change knobs; a key with operator = true may"
        raise Fault(403, text, reason="no operator")


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
            return Response(headers=EVENT_HEADERS)
        headers = [(name.encode(), value.encode()) for name, value in EVENT_HEADERS.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        gone = asyncio.create_task(until_gone(request))
        try:
            hello = _greeting(visitor) | {"sampling": sorted(self.service.sampling)}
            await send(encoded_event(b"hello", encoded(hello)))
            async with aclosing(self._feed.events(visitor.is_operator)) as events:
                async for event in events:
                    if gone.done():
                        return None
                    await send(encoded_event(b"frame", event))
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
        "glosses": PAGE_GLOSSES,
    }


def encoded_event(kind: bytes, data: bytes) -> dict[str, object]:
    """An event as a message of ASGI."""
    body = b"event: " + kind + b"\ndata: " + data + b"\n\n"
    return {"type": "http.response.body", "body": body, "more_body": True}


class LiveKnobs(Endpoint):
    """Executes control messages, one at a time, and answers with the state of the knobs."""

    def __init__(self, service: Service, visitors: Visitors) -> None:
        super().__init__(service)
        self._visitors = visitors
        self._turn = asyncio.Lock()

    async def answer(self, request: Request, send: Send) -> Response:
        user = self._visitors.operator(request)
        body = await read_body(request, _check_size)
        try:
            message = json.loads(body)
        except (ValueError, RecursionError):
            text = "the message cannot be read as JSON; it must be an object"
            raise Fault(400, text) from None
        control = Control(self.service.client, user)
        async with self._turn:
            # On a thread, because this waits until the engine has applied the change.
            answer = await asyncio.to_thread(control.answer, message)
        error = answer.get("error")
        code = Fault.of(ErrorInfo(**error)).code if isinstance(error, dict) else 200
        return Response(encoded(answer), code, media_type="application/json")


def _check_size(size: int) -> None:
    if size > MAX_BYTES:
        text = f"the message has {size} bytes; at most {MAX_BYTES} are allowed"
        raise Fault(413, text, reason="too large")
