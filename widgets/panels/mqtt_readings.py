"""MqttReadings: the gateway at one moment, as its panel shows it."""

from __future__ import annotations

from dataclasses import dataclass

from engine.api.telemetry import Distribution
from widgets.panels.broker_state import BrokerState


@dataclass(frozen=True, slots=True)
class Refusals:
    """Requests that were refused for one reason. `code` is as in HTTP."""

    code: int
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class MqttUser:
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
        time: when it came, in seconds since the epoch.
        topic, excerpt: the beginnings of topic and payload, as they came.
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
        address: the broker's address, without a password.
        detail: why the connection is in its state; empty if there is nothing to say.
        lasted: seconds since the state began.
        protocol: "5" or "3.1.1"; empty while there is no connection.
        received, published: messages a second.
        running: requests that are accepted and unfinished.
        waiting: how many of these have no first token.
        untold: endings that the broker has not taken yet.
        accepted, finished: requests since the start.
        rejected: refused requests by reason.
        first_token: seconds from publish to first token.
        bad: the messages that could not be served, the newest first.
        users: users with requests here, the busiest first.
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
