"""HttpView: the HTTP gateway at one moment, as immutable plain data for any thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from app.gateway.view import GatewayView, Transcripts, Used


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpView(GatewayView):
    """The gateway, which runs since `since`. First-token times count from arrival.

    Attributes:
        url: the gateway's URL.
        draining: whether it accepts nothing new.
        connections: open connections.
        used: replies and tokens since the start, by user.
    """

    url: str
    draining: bool
    connections: int
    used: Mapping[str, Used]


class HttpSide(Transcripts, Protocol):
    """The gateway's interface for the screen; callable from any thread."""

    @property
    def failure(self) -> str:
        """The reason why it has ended; empty if it has not."""
        ...

    def view(self) -> HttpView: ...
