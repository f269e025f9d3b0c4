"""GatewayReadings: a gateway at one moment, with the fields that all gateways' panels share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine.api.telemetry import Distribution
from widgets.glyphs import Mark


class GatewayState(Protocol):
    """The state of a gateway: as text the shown word, and the mark beside it."""

    @property
    def mark(self) -> Mark: ...


@dataclass(frozen=True, slots=True)
class Refusals:
    """Requests that were refused for one reason. `code` is as in HTTP."""

    code: int
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class GatewayUser:
    """One user who has requests here, or had some rejected.

    Attributes:
        running: the user's requests that are accepted and unfinished.
        waiting: how many of these have no first token.
        rejected: how many of the user's requests were refused.
    """

    name: str
    running: int
    waiting: int
    rejected: int


@dataclass(frozen=True, slots=True)
class BadMessage:
    """A message that could not be served.

    Attributes:
        time: when it arrived, in seconds since the epoch.
        topic, excerpt: the beginnings of its topic and payload, unescaped.
    """

    time: float
    topic: str
    code: int
    reason: str
    excerpt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayReadings:
    """A gateway and its requests.

    Attributes:
        state: its current state.
        detail: the reason for its state; empty if there is none.
        lasted: seconds since the state began.
        address: of the broker or of itself, without a password.
        received, sent: messages or requests a second.
        running: requests that are accepted and unfinished.
        waiting: how many of these have no first token.
        accepted, finished: requests since the start.
        rejected: refused requests by reason.
        first_token: seconds until the first token.
        bad: the messages that could not be served, newest first.
        users: users with requests here, the busiest first.
    """

    state: GatewayState
    detail: str
    lasted: float
    address: str
    received: float
    sent: float
    running: int
    waiting: int
    accepted: int
    finished: int
    rejected: tuple[Refusals, ...]
    first_token: Distribution
    bad: tuple[BadMessage, ...]
    users: tuple[GatewayUser, ...]
