"""Gateway views: the common data of gateways for the screen, immutable, for any thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from app.store.conversation import Conversation, Message
from engine.api.stream import Thought
from engine.api.telemetry import Distribution


@dataclass(frozen=True, slots=True)
class Rejection:
    """Requests that were refused for one reason.

    Attributes:
        code: the code of `app.gateway.faults.Fault`.
        reason: in a few words that are the same for all of them.
        count: the number of requests.
    """

    code: int
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class BadMessage:
    """A message that could not be served, for inspection.

    Attributes:
        time: when it arrived, in seconds since the epoch.
        topic, excerpt: the beginnings of its topic and payload, unescaped. Make them harmless
            before display.
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


class Used(NamedTuple):
    """Replies of a user that the engine ended, and their tokens.

    Attributes:
        prompt_tokens: with those that were in the cache.
    """

    replies: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayView:
    """A gateway and its requests.

    Attributes:
        time, since: when the view was made and when the gateway's state began, in seconds of the
            engine's clock.
        running: requests that are accepted and unfinished.
        waiting: how many of these have no first token.
        accepted, finished: requests since the start.
        rejected: refused requests by reason, the most frequent reason first.
        first_token: seconds until the first token, over the last minute.
        bad: the last messages that could not be served, the newest first.
        users: users with requests here, the busiest first.
    """

    time: float
    since: float
    running: int
    waiting: int
    accepted: int
    finished: int
    rejected: tuple[Rejection, ...]
    first_token: Distribution
    bad: tuple[BadMessage, ...]
    users: tuple[UserView, ...]


@dataclass(frozen=True, slots=True)
class Transcript:
    """A chat over a gateway.

    Attributes:
        messages: oldest first; the last may be an unfinished reply.
        request_id: the engine's id of the unfinished reply; None if there is none.
        version: grows with every change.
        num_prompt_tokens, num_output_tokens: tokens of that reply's prompt and output, as far as
            known; 0 without an unfinished reply.
        thought: the thinking of that reply so far.
    """

    conversation: Conversation
    messages: tuple[Message, ...]
    request_id: str | None
    version: int
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    thought: Thought = field(default_factory=Thought)


class Transcripts(Protocol):
    """Chats over a gateway, for the screen; callable from any thread."""

    def transcript(self, request_id: str) -> Transcript | None:
        """The chat of a running or recently ended request, by the engine's id. If its session has
        continued since, the chat includes the later turns."""
        ...

    def holds(self, conversation_id: str) -> bool:
        """Whether the chat is in memory here, so that its owner may continue it."""
        ...
