"""Connections: the clients of the gateway, and limits on each of them."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import httptools
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from app.gateway.faults import Fault
from app.gateway.http.access import STRANGER, Access
from app.gateway.http.endpoint import error_body, refusal
from app.gateway.tally import Tally

log = logging.getLogger(__name__)

# From the connection, or the end of the previous answer, to the last of a request's headers.
HEAD_SECONDS = 30.0
# Limit of a request's line and headers, or of the bytes between two pieces of its body. One read,
# at most 256 KiB, may exceed it.
HEAD_BYTES = 65_536
# Requests that wait on a connection until the previous one is answered.
PIPELINED = 16
# One of this many connections is reserved for requests with a key, and for `/health`.
KEPT_PART = 16
# Connections accepted in one turn of the loop.
AT_ONCE = 32
# Pause before the next accept if the system has no descriptor left, and no connection is idle.
ACCEPT_SECONDS = 1.0
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
# How many of the longest idle connections are checked for unsent bytes.
_IDLE_CHECKED = 16
_HEALTH = "/health"
_UPGRADING = (b"upgrade", b"http2-settings")


class Connections:
    """Accepts connections. Above the limit, an idle one is closed for each new one: the one that is
    idle longest among those without a key, because anybody may open thousands. If all are busy, the
    reserved part is for requests with a key, and for `/health`.

    asyncio's own server accepts as many as its backlog holds before the first of them is known, and
    logs each of 2,048 attempts when descriptors run out. TLS counts here before its handshake.

    Args:
        most: most connections at once.
    """

    def __init__(self, access: Access, tally: Tally, most: int) -> None:
        self._access = access
        self._tally = tally
        self._most = most
        self._shared = most - max(1, most // KEPT_PART)
        self._all: set[Connection] = set()
        # The parsed requests of each caller that no endpoint has yet; the next caller in turn comes
        # first.
        self._queued: dict[str, deque[Callable[[], bool]]] = {}
        # Idle connections, longest idle first: those without a key, and those with one.
        self._idle: tuple[dict[Connection, None], ...] = ({}, {})

    def __len__(self) -> int:
        return len(self._all)

    async def accept(
        self, listening: socket.socket, make: Callable[[], Connection], tls: ssl.SSLContext | None
    ) -> None:
        """Accept connections until cancelled."""
        loop, num_at_once = asyncio.get_running_loop(), 0
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as error:
                if error.errno in _NO_DESCRIPTOR and not self._close_idle():
                    log.warning("no connection can be accepted: %s", error.strerror)
                    await asyncio.sleep(ACCEPT_SECONDS)
                num_at_once = AT_ONCE
            else:
                self._admit(accepted, make, tls)
                num_at_once += 1
            if num_at_once >= AT_ONCE:
                # A burst of connections keeps no others waiting; closed ones are removed meanwhile.
                await asyncio.sleep(0.0)
                num_at_once = 0

    def _admit(
        self, accepted: socket.socket, make: Callable[[], Connection], tls: ssl.SSLContext | None
    ) -> None:
        is_crowded = len(self) >= self._shared and not self._close_idle()
        if is_crowded and len(self) >= self._most:
            log.warning("%d connections are busy; no other one is accepted", len(self))
            accepted.close()
            return
        one = make()
        self._all.add(one)
        self.rests(one)
        one.opening = asyncio.get_running_loop().create_task(_open(accepted, one, tls))
        one.opening.add_done_callback(partial(self._opened, one, accepted))

    def _opened(self, one: Connection, accepted: socket.socket, _opening: object) -> None:
        if one.transport is None:  # The TLS handshake failed, or it was closed before.
            accepted.close()
            self.left(one)

    def _close_idle(self) -> bool:
        """Close the connection that is idle longest; False if none is idle."""
        for idle in self._idle:
            for _ in range(min(_IDLE_CHECKED, len(idle))):
                one = next(iter(idle))
                if one.has_sent_all:
                    break
                idle[one] = idle.pop(one)
            if idle:
                one = next(iter(idle))
                self.left(one)
                one.drop()
                return True
        return False

    # Reports of a connection about its state.

    def rests(self, one: Connection) -> None:
        """It has no request in progress."""
        if one in self._all:
            self._idle[one.has_key][one] = None

    def works(self, one: Connection) -> None:
        """It has a request in progress."""
        for idle in self._idle:
            idle.pop(one, None)

    def left(self, one: Connection) -> None:
        """It is closed; a second call is ignored."""
        self._all.discard(one)
        self.works(one)

    def user(self, headers: Headers) -> str | None:
        """The owner of a request's key; None without a known key."""
        user = STRANGER if self._access.is_open else self._access.asker(headers)
        return None if user == STRANGER else user

    def enqueue(self, who: str, start: Callable[[], bool]) -> None:
        """Start a request when it is its caller's turn. Callers take turns, one request in each
        turn of the loop: 5,000 requests of one, each aborted at once, made others wait 6 s.

        Args:
            start: starts the request; False if its client has gone.
        """
        if not self._queued:
            asyncio.get_running_loop().call_soon(self._start)
        self._queued.setdefault(who, deque()).append(start)

    def _start(self) -> None:
        has_started = False
        while self._queued and not has_started:
            who = next(iter(self._queued))
            mine = self._queued.pop(who)
            while mine and not has_started:
                has_started = mine.popleft()()
            if mine:
                self._queued[who] = mine
        if self._queued:
            asyncio.get_running_loop().call_soon(self._start)

    def crowded(self) -> Fault | None:
        """Why a request without a key cannot be answered now; None if it can."""
        if len(self) <= self._shared:
            return None
        text = f"{len(self)} connections are open and busy; those that are left are for requests"
        text += " with a key"
        return Fault(503, text, reason="too many connections", retry_after_ms=1000)

    def refused(self, one: Connection, fault: Fault) -> None:
        """Count a request that was refused before any endpoint."""
        self._tally.refused(fault, STRANGER)
        if fault.code == 400:
            self._tally.denied(fault, one.client[0] if one.client else "")


class Connection(HttpToolsProtocol):
    """uvicorn's side of a client. It closes the connection of a client that begins a request and
    stalls, or that makes it buffer more than a body; uvicorn only limits how long a client is idle
    between two requests.

    Upgrades to another protocol are ignored: the request is answered as if it had none.

    Attributes:
        opening: the task that opens the connection.
        has_key: whether it has sent a known key.
    """

    opening: asyncio.Task[None]
    has_key = False
    _head: asyncio.TimerHandle | None = None
    # Bytes since the last piece of a body, or the end of a head or a request.
    _unread = 0
    # The owner of its turns: the user, or the address of a client without a key.
    _who = ""
    # The head of a request without its upgrade headers.
    _declined = b""

    def __init__(self, connections: Connections, *uvicorns: Any) -> None:
        super().__init__(*uvicorns)
        self._connections = connections
        self._application = self.app

    @property
    def has_sent_all(self) -> bool:
        return self.transport is None or not self.transport.get_write_buffer_size()

    def drop(self) -> None:
        """Close it at once."""
        self.opening.cancel()
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._have_head()
        self._connections.left(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._unread += len(data)
        self._parse(data)
        if self._unread > HEAD_BYTES and not self.transport.is_closing():
            if self._head is not None and not self._is_answering():
                self.transport.write(STATUS_LINE[431] + b"connection: close\r\n\r\n")
            self.transport.close()
        if len(self.pipeline) > PIPELINED:
            self.transport.abort()

    def _parse(self, data: bytes) -> None:
        try:
            while data and len(self.pipeline) <= PIPELINED:
                try:
                    self.parser.feed_data(data)
                    return
                except httptools.HttpParserUpgrade as upgrade:
                    # The parser would leave the rest, including the request's body, to another
                    # protocol.
                    data = data[upgrade.args[0] :]
                    self.parser = httptools.HttpRequestParser(self)
                    head, self._declined = self._declined, b""
                    self.parser.feed_data(head)
        except httptools.HttpParserError:
            fault = Fault(400, "the input is not an HTTP request", reason="no HTTP")
            self._connections.refused(self, fault)
            self.send_400_response(fault.message)

    def on_message_begin(self) -> None:
        if self._head is None:
            self._expect_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        method = self.parser.get_method()
        if self.parser.should_upgrade() and method != b"CONNECT":
            self._declined = self._without_upgrade(method)
            return
        self._have_head()
        user = self._connections.user(Headers(raw=self.headers))
        self._who = user or (self.client[0] if self.client else "")
        self.has_key = self.has_key or user is not None
        self._connections.works(self)
        fault = self._fault()
        self.app = self._application if fault is None else partial(_refuse, fault)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unread = 0
        if not self._declined:
            super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._connections.enqueue(self._who, partial(self._start, cycle, app))

    def _start(self, cycle: RequestResponseCycle, app: Any) -> bool:
        if not cycle.disconnected:
            knows_chunks = cycle.scope["http_version"] != "1.0"
            super()._start_asgi_task(
                cycle, app if knows_chunks else partial(_unchunked, cycle, app)
            )
        return not cycle.disconnected

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.pipeline:
            # uvicorn resumes reading even if requests are pending.
            self.flow.pause_reading()
        if not self._is_answering():
            self._connections.rests(self)

    def _fault(self) -> Fault | None:
        """Why a request is refused before its endpoint; None if it is not."""
        num_hosts = sum(name == b"host" for name, _ in self.headers)
        fault = None
        if num_hosts > 1 or (not num_hosts and self.parser.get_http_version() != "1.0"):
            # With two of them, a proxy might have used the other one.
            text = f"Host is stated {num_hosts} times; a request must state it once"
            fault = Fault(400, text, reason="no host")
        elif not self.has_key and self.url.partition(b"?")[0].decode("latin-1") != _HEALTH:
            fault = self._connections.crowded()
        if fault is not None:
            self._connections.refused(self, fault)
        return fault

    def _without_upgrade(self, method: bytes) -> bytes:
        """The head of a request without its upgrade headers."""
        lines = [b"%b %b HTTP/%b" % (method, self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            if name == b"connection":
                tokens = [one.strip() for one in value.split(b",")]
                value = b", ".join(one for one in tokens if one.lower() not in _UPGRADING)
            if name not in _UPGRADING:
                lines.append(b"%b: %b" % (name, value))
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_head(self) -> None:
        self._head = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _have_head(self) -> None:
        self._unread = 0
        if self._head is not None:
            self._head.cancel()
            self._head = None


async def _open(accepted: socket.socket, one: Connection, tls: ssl.SSLContext | None) -> None:
    """Open a connection, with the TLS handshake if it uses TLS."""
    seconds = None if tls is None else HEAD_SECONDS
    with suppress(OSError):
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: one, accepted, ssl=tls, ssl_handshake_timeout=seconds
        )


async def _unchunked(
    cycle: RequestResponseCycle, app: Any, scope: Scope, receive: Receive, send: Send
) -> None:
    """Answer a request of HTTP/1.0, which has no chunked encoding: an answer of unknown length ends
    with its connection.
    """

    async def answer(message: Any) -> None:
        if message["type"] == "http.response.start":
            if all(name.lower() != b"content-length" for name, _ in message.get("headers", ())):
                cycle.chunked_encoding = cycle.keep_alive = False
        elif cycle.chunked_encoding is False and not cycle.keep_alive:
            # uvicorn wants the length that was stated to come.
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    await app(scope, receive, answer)


async def _refuse(fault: Fault, scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a request before its endpoint, and close its connection."""
    response = refusal(fault, error_body(fault))
    response.headers["connection"] = "close"
    await response(scope, receive, send)
