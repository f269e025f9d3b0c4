"""GatewayView: the MQTT gateway at one moment, as immutable plain data for any thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from app.gateway.mqtt.transport.link import LinkPhase
from app.gateway.view import BadMessage, Rejection, Transcripts, UserView
from engine.api.telemetry import Distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayView:
    """The gateway and its connection.

    Attributes:
        time, since: when the view was made and when `phase` began, in seconds of the engine's
            clock.
        address: the broker's address, without a password.
        detail: what a person should know of the connection or the pool; empty if all is well.
        protocol: "5" or "3.1.1"; empty while there is no connection.
        running: requests that are accepted and unfinished.
        waiting: how many of these have no first token.
        undelivered: endings that the broker has not taken yet.
        received, published: messages since the start.
        accepted, finished: requests since the start.
        rejected: refused requests by reason, the most frequent reason first.
        first_token: seconds from publish to first token, over the last minute. They count from
            arrival here for requests that do not say when they were sent.
        bad: the last messages that could not be served, the newest first.
        users: users with requests here, the busiest first.
    """

    time: float
    address: str
    pool: str
    node: str
    phase: LinkPhase
    detail: str
    since: float
    protocol: str
    running: int
    waiting: int
    undelivered: int
    received: int
    published: int
    accepted: int
    finished: int
    rejected: tuple[Rejection, ...]
    first_token: Distribution
    bad: tuple[BadMessage, ...]
    users: tuple[UserView, ...]


class Gateway(Transcripts, Protocol):
    """What the screen may ask of a gateway; from any thread."""

    def view(self) -> GatewayView: ...

    def reconnect(self) -> None:
        """Connect again now, after a takeover or in the middle of a pause."""
        ...
