"""read_body: reads a request body, within limits of size and time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from app.gateway.faults import Fault

T = TypeVar("T")

# Timeout for a whole body: one of 4 MB over a line of 1 Mbit/s takes 32 s.
BODY_SECONDS = 60.0
_MAX_SHOWN = 64


async def read_body(request: Request, check_size: Callable[[int], None]) -> bytes:
    """Read a request's body.

    Args:
        check_size: raises a Fault if a number of bytes is too large.

    Raises:
        Fault: it is compressed, too large, or does not arrive in time.
        ClientDisconnect: the client has gone.
    """
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.strip().lower() not in ("", "identity"):
        text = f"content-encoding is {encoding[:_MAX_SHOWN]!a}; it must be identity, or left out"
        raise Fault(400, text, "content-encoding", reason="compressed request")
    stated = request.headers.get("content-length", "")
    if stated.isdecimal():
        check_size(int(stated))
    pieces, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                size += len(piece)
                check_size(size)
                pieces.append(piece)
    except TimeoutError:
        text = f"the request did not arrive within {BODY_SECONDS:g} s"
        raise Fault(408, text, reason="slow request") from None
    return b"".join(pieces)


async def until_gone(request: Request) -> None:
    """Return when the client has disconnected. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def unless_gone(request: Request, promise: asyncio.Future[T]) -> T:
    """Await a result, unless the client disconnects first. The body must have been read.

    Raises:
        ClientDisconnect: it has disconnected, and the future is cancelled.
    """
    gone = asyncio.create_task(until_gone(request))
    gone.add_done_callback(lambda _: promise.cancel())
    try:
        return await promise
    except asyncio.CancelledError:
        if gone.done() and not gone.cancelled():
            raise ClientDisconnect from None
        raise
    finally:
        gone.cancel()
