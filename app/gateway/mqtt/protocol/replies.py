"""Replies: what answers a request, all on its one topic."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from app.gateway.mqtt.protocol.messages import Part, ServerMessage


class Accepted(ServerMessage):
    """The request is in the journal and with the engine; an ending will come.

    Attributes:
        attempt: counts from 1 how often the request was run.
        queue_depth: requests that wait for the batch, this one among them.
        priority: the one that it has, after the user's quota.
    """

    type: Literal["accepted"] = "accepted"
    request_id: str
    attempt: int
    queue_depth: int
    priority: int
    model: str


class DeltaText(Part):
    """Text that follows what came before."""

    content: str


class Choice(Part):
    """The only one, in the shape that OpenAI clients know."""

    index: Literal[0] = 0
    delta: DeltaText


class DeltaReply(ServerMessage):
    """Some of the text.

    Attributes:
        seq: counts the deltas of an attempt from 0; a gap is text that only the final has.
    """

    type: Literal["delta"] = "delta"
    request_id: str
    attempt: int
    seq: int
    choices: Annotated[list[Choice], Field(min_length=1, max_length=1)]

    @property
    def text(self) -> str:
        return self.choices[0].delta.content


class ReplyUsage(Part):
    """Tokens; `cached_tokens` are those of the prompt that were in the KV cache."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int


class ReplyTimings(Part):
    """The engine's times of a request; None where there was none.

    Attributes:
        queue_ms: from arrival to the first step that computed it.
        ttft_ms: from arrival to the first token.
        tpot_ms: from there, a token.
        e2e_ms: in all.
    """

    queue_ms: float | None
    ttft_ms: float | None
    tpot_ms: float | None
    e2e_ms: float | None


class Final(ServerMessage):
    """The end of an attempt that went well, with the whole text.

    Attributes:
        last_seq: of the last delta, -1 if there was none.
    """

    type: Literal["final"] = "final"
    request_id: str
    attempt: int
    last_seq: int
    text: str
    finish_reason: Literal["stop", "length"]
    model: str
    usage: ReplyUsage
    timings: ReplyTimings


class ErrorBody(Part):
    """What went wrong, in the shape that OpenAI clients know.

    Attributes:
        param: dotted path of the field at fault, if one is.
        retryable: whether the same request may succeed later.
    """

    type: str
    code: int
    message: str
    param: str | None
    retryable: bool


class ErrorReply(ServerMessage):
    """The end of an attempt that failed, or a refusal.

    Attributes:
        attempt: None of a request that was refused before it was accepted.
        retry_after_ms: when to ask again, where that is known.
        queue_depth: requests that waited, of one that was refused for it.
        last_seq: of the last delta, -1 if there was none; None where that is not known.
    """

    type: Literal["error"] = "error"
    request_id: str
    attempt: int | None
    error: ErrorBody
    retry_after_ms: int | None
    queue_depth: int | None
    last_seq: int | None


Reply = Accepted | DeltaReply | Final | ErrorReply
_REPLY: TypeAdapter[Reply] = TypeAdapter(Annotated[Reply, Field(discriminator="type")])


def parse_reply(payload: bytes) -> Reply:
    """
    Raises:
        ValueError: it is no reply of this version.
    """
    return _REPLY.validate_json(payload)
