"""GatewayReadings: a gateway at one moment, MQTT's or HTTP's, for its panel.

Rejections, users and bad messages are those of the gateway's own view, which no widget imports.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from engine.api.telemetry import Distribution
from widgets.glyphs import Mark


class BrokerState(StrEnum):
    """The state of a connection. The value is the word shown beside the mark."""

    CONNECTING = "connecting"
    ONLINE = "online"
    OFFLINE = "offline"
    TAKEN_OVER = "taken over"
    STOPPED = "stopped"

    @property
    def mark(self) -> Mark:
        return _BROKER_MARKS[self]


_BROKER_MARKS = {
    BrokerState.CONNECTING: Mark.PREFILL,
    BrokerState.ONLINE: Mark.DONE,
    BrokerState.OFFLINE: Mark.FAILED,
    BrokerState.TAKEN_OVER: Mark.PREEMPTED,
    BrokerState.STOPPED: Mark.STOPPED,
}


class GatewayState(Protocol):
    """The state of a gateway: as text the shown word, and the mark beside it."""

    @property
    def mark(self) -> Mark: ...


class Rejection(Protocol):
    """Requests that were refused for one reason. `code` is as in HTTP."""

    @property
    def code(self) -> int: ...
    @property
    def reason(self) -> str: ...
    @property
    def count(self) -> int: ...


class UserView(Protocol):
    """One user who has requests here, or had some rejected."""

    @property
    def name(self) -> str: ...
    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def rejected(self) -> int: ...


class BadMessage(Hashable, Protocol):
    """A message that could not be served. Its topic and its excerpt are unescaped."""

    @property
    def time(self) -> float: ...
    @property
    def topic(self) -> str: ...
    @property
    def code(self) -> int: ...
    @property
    def reason(self) -> str: ...
    @property
    def excerpt(self) -> str: ...


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
    rejected: tuple[Rejection, ...]
    first_token: Distribution
    bad: tuple[BadMessage, ...]
    users: tuple[UserView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttReadings(GatewayReadings):
    """The gateway and its broker. `received` and `sent` count messages; first-token times count
    from publish.

    Attributes:
        protocol: "5" or "3.1.1"; empty while there is no connection.
        undelivered: endings that the broker has not accepted yet.
    """

    state: BrokerState
    protocol: str
    pool: str
    node: str
    undelivered: int


class HttpState(StrEnum):
    """The state of the gateway. The value is the word shown beside the mark."""

    SERVING = "serving"
    DRAINING = "draining"
    STOPPED = "stopped"

    @property
    def mark(self) -> Mark:
        return _HTTP_MARKS[self]


_HTTP_MARKS = {
    HttpState.SERVING: Mark.DONE,
    HttpState.DRAINING: Mark.PREEMPTED,
    HttpState.STOPPED: Mark.FAILED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReadings(GatewayReadings):
    """The gateway. `received` and `sent` count requests; first-token times count from arrival.

    Attributes:
        connections: open connections.
    """

    state: HttpState
    connections: int
