"""GatewayView: the MQTT gateway at one moment, as immutable plain data for any thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from app.gateway.mqtt.transport.link import LinkPhase
from app.store.conversation import Conversation, Message
from engine.api.telemetry import Distribution


@dataclass(frozen=True, slots=True)
class Rejection:
    """Requests that were refused for one reason.

    Attributes:
        code: as `app.gateway.mqtt.protocol.faults.Fault` has it.
        reason: in few words, the same for all of them.
    """

    code: int
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class BadMessage:
    """A message that could not be served, to look at.

    Attributes:
        time: seconds since the epoch.
        topic, excerpt: their beginnings, as they came: whoever shows them must make them harmless.
    """

    time: float
    topic: str
    code: int
    reason: str
    excerpt: str


@dataclass(frozen=True, slots=True)
class UserView:
    """One user who has requests here, or had some refused.

    Attributes:
        running: accepted and unfinished.
        waiting: of them without a first token.
    """

    name: str
    running: int
    waiting: int
    rejected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayView:
    """The gateway and its connection.

    Attributes:
        time, since: engine clock, seconds; `since` is when `phase` began.
        address: the broker's, without a password.
        protocol: "5", "3.1.1", or "" before a connection.
        running: requests accepted and unfinished.
        waiting: of them without a first token.
        undelivered: endings that the broker has not taken yet.
        received, published: messages since the start.
        first_token: from publish to first token, seconds, over the last minute; from arrival here
            for requests that do not say when they were sent.
        bad: the newest first.
        users: the busiest first.
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


@dataclass(frozen=True, slots=True)
class Transcript:
    """A chat that is held over MQTT.

    Attributes:
        messages: oldest first; the last may be the reply in the making.
        request_id: the engine's, of that reply; None if none is made.
        version: grows with every change.
        num_prompt_tokens, num_output_tokens: of that reply, as far as they are known.
    """

    conversation: Conversation
    messages: tuple[Message, ...]
    request_id: str | None
    version: int
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0


class Gateway(Protocol):
    """What the screen may ask of a gateway; from any thread."""

    def view(self) -> GatewayView: ...

    def transcript(self, request_id: str) -> Transcript | None:
        """The chat of a request by the engine's id, running or ended lately.

        Where its session has gone on since, that is in it.
        """
        ...

    def reconnect(self) -> None:
        """Connect again, now, after a takeover or in the middle of a wait."""
        ...
