"""Connection: uvicorn's side of a client, with bounds on what a client may have us wait for."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

# From the connection, or the end of the answer before, to the last of a request's headers.
HEAD_SECONDS = 30.0
# Of a request's line and headers, or between two pieces of its body. What is read at once, 256 KiB
# at most, may go beyond it.
HEAD_BYTES = 65_536
# Requests that wait on a connection until the one before them is answered.
PIPELINED = 16


class Connection(HttpToolsProtocol):
    """Closes the connection of a client that begins a request and does not get on with it, or has
    more to be kept of it than its body. uvicorn bounds only how long a client is idle between two
    requests.
    """

    _head: asyncio.TimerHandle | None = None
    # What has come since the last piece of a body, or the end of a head or a request.
    _unread = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._have_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        super().data_received(data)
        if self._unread > HEAD_BYTES and not self.transport.is_closing():
            if self._head is not None and not self._is_answering():
                self.transport.write(STATUS_LINE[431] + b"connection: close\r\n\r\n")
            self.transport.close()
        if len(self.pipeline) > PIPELINED:
            self.transport.abort()

    def on_message_begin(self) -> None:
        if self._head is None:
            self._expect_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._have_head()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unread = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.pipeline:
            # uvicorn reads on, whatever waits.
            self.flow.pause_reading()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_head(self) -> None:
        self._head = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _have_head(self) -> None:
        self._unread = 0
        if self._head is not None:
            self._head.cancel()
            self._head = None
