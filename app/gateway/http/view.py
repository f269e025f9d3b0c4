"""HttpView: the HTTP gateway at one moment, as immutable plain data for any thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from app.gateway.view import GatewayView, Transcripts


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpView(GatewayView):
    """The gateway, which is there since `since`. A first token counts from arrival.

    Attributes:
        url: where it is reached.
        draining: whether it takes nothing new.
        connections: that are open.
    """

    url: str
    draining: bool
    connections: int


class HttpSide(Transcripts, Protocol):
    """What the screen may ask of the gateway; from any thread."""

    @property
    def failure(self) -> str:
        """Why it has given up; empty if it has not."""
        ...

    def view(self) -> HttpView: ...
