"""GatewayView: the MQTT gateway at one moment, as immutable plain data for any thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from app.gateway.mqtt.transport.link import LinkPhase
from app.store.conversation import Conversation, Message
from engine.api.stream import Thought
from engine.api.telemetry import Distribution


@dataclass(frozen=True, slots=True)
class Rejection:
    """Requests that were refused for one reason.

    Attributes:
        code: the code of `app.gateway.faults.Fault`.
        reason: why, in a few words that are the same for all of them.
        count: how many there were.
    """

    code: int
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class BadMessage:
    """A message that could not be served, to look at.

    Attributes:
        time: when it came, in seconds since the epoch.
        topic, excerpt: the beginnings of topic and payload, as they came. Whoever shows them must
            make them harmless.
        code, reason: of the fault; see `Rejection`.
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
        running: the user's requests that are accepted and unfinished.
        waiting: how many of these have no first token.
        rejected: how many of the user's requests were refused.
    """

    name: str
    running: int
    waiting: int
    rejected: int


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


@dataclass(frozen=True, slots=True)
class Transcript:
    """A chat that is held over MQTT.

    Attributes:
        messages: the oldest first; the last may be a reply in the making.
        request_id: the engine's id of the reply in the making; None if there is none.
        version: grows with every change.
        num_prompt_tokens, num_output_tokens: tokens of that reply's prompt and output, as far as
            they are known; 0 without a reply in the making.
        thought: what that reply has thought so far.
    """

    conversation: Conversation
    messages: tuple[Message, ...]
    request_id: str | None
    version: int
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    thought: Thought = field(default_factory=Thought)


class Gateway(Protocol):
    """What the screen may ask of a gateway; from any thread."""

    def view(self) -> GatewayView: ...

    def transcript(self, request_id: str) -> Transcript | None:
        """The chat of a request that runs or has ended lately, by the engine's id. If its session
        has gone on since, the chat has the later turns too."""
        ...

    def holds(self, conversation_id: str) -> bool:
        """Whether a chat is at hand here, so that whoever holds it may go on with it."""
        ...

    def reconnect(self) -> None:
        """Connect again now, after a takeover or in the middle of a pause."""
        ...
