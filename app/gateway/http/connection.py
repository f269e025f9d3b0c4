"""Connection: uvicorn's side of a client, with a bound on how long a client takes to ask."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# From the connection, or the end of the answer before, to the last of a request's headers.
HEAD_SECONDS = 30.0


class Connection(HttpToolsProtocol):
    """Closes the connection of a client that begins a request and does not get on with it. uvicorn
    bounds only how long a client is idle between two requests.
    """

    _head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._have_head()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        if self._head is None:
            self._expect_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._have_head()
        super().on_headers_complete()

    def _expect_head(self) -> None:
        self._head = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _have_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None
