"""MqttReadings: the gateway at one moment, as its panel is given it."""

from __future__ import annotations

from dataclasses import dataclass

from engine.api.telemetry import Distribution
from widgets.broker_state import BrokerState


@dataclass(frozen=True, slots=True)
class Refusals:
    """Requests refused for one reason; `code` is that of HTTP."""

    code: int
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class MqttUser:
    """One user who has requests here, or had some rejected.

    Attributes:
        running: requests accepted and unfinished; `waiting` of them have no first token.
    """

    name: str
    running: int
    waiting: int
    rejected: int


@dataclass(frozen=True, slots=True)
class BadMessage:
    """A message that could not be served.

    Attributes:
        time: seconds since the epoch.
        topic, excerpt: as they came.
    """

    time: float
    topic: str
    code: int
    reason: str
    excerpt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttReadings:
    """The gateway at one moment.

    Attributes:
        address: the broker's, without a password.
        detail: why it is in that state, if there is something to say.
        lasted: seconds since the state began.
        protocol: "5", "3.1.1", or "" before a connection.
        received, published: messages a second.
        running: requests accepted and unfinished; `waiting` of them have no first token.
        untold: endings that the broker has not taken yet.
        accepted, finished: requests since the start.
        first_token: from publish to first token, seconds.
        bad: the newest first.
        users: the busiest first.
    """

    address: str
    state: BrokerState
    detail: str
    lasted: float
    protocol: str
    pool: str
    node: str
    received: float
    published: float
    running: int
    waiting: int
    untold: int
    accepted: int
    finished: int
    rejected: tuple[Refusals, ...]
    first_token: Distribution
    bad: tuple[BadMessage, ...]
    users: tuple[MqttUser, ...]
