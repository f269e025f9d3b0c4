"""Replies: the messages that answer a request, all on one topic, and the base of all messages."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from app.gateway.faults import Fault


class Part(BaseModel):
    """Plain data inside a message of the server.

    Fields that are not known are ignored, so that a client can read messages of a later server.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        strict=True,
        allow_inf_nan=False,
        json_schema_serialization_defaults_required=True,
    )


class ServerMessage(Part):
    """A message of the server, in version 1 of the protocol."""

    v: Literal[1] = 1

    def encode(self) -> bytes:
        """Compact JSON in UTF-8, with every field."""
        return self.model_dump_json().encode()


class Accepted(ServerMessage):
    """The request is in the journal and with the engine; an ending will come.

    Attributes:
        attempt: which run of the same request this is. Later runs have larger numbers.
        queue_depth: the number of accepted requests without a token, including this one.
        priority: the request's effective priority, after the user's quota.
        model: the name of the model that serves it.
    """

    type: Literal["accepted"] = "accepted"
    request_id: str
    attempt: int
    queue_depth: int
    priority: int
    model: str


class DeltaText(Part):
    """A piece of the reply's text, which follows the pieces before.

    Attributes:
        reasoning_content: a piece of the model's thinking before the text; None if there is none.
    """

    content: str
    reasoning_content: str | None = None


class LikelyToken(Part):
    """A token that is likely at one position of the reply, in the shape that OpenAI clients know.

    Attributes:
        token: its text, with U+FFFD for a part of a character.
        logprob: a natural logarithm under the model's own distribution.
        bytes: the token in UTF-8.
    """

    token: str
    logprob: float
    bytes: list[int]


class ReplyToken(LikelyToken):
    """A token of the reply.

    Attributes:
        top_logprobs: the likeliest tokens at its position, likeliest first.
    """

    top_logprobs: list[LikelyToken]


class ReplyLogprobs(Part):
    """The log-probabilities of consecutive tokens, which may be part of the text, of the thinking,
    or, as the one that ends the reply, of neither."""

    content: list[ReplyToken]


class PromptChoice(Part):
    """A token that is likely at one position of the prompt, in the shape that vLLM's clients know.

    Attributes:
        rank: one more than the number of likelier tokens.
    """

    logprob: float
    rank: int
    decoded_token: str


class Choice(Part):
    """The only choice of a delta, in the shape that OpenAI clients know.

    Attributes:
        logprobs: those of its tokens; None if the request wants none.
    """

    index: Literal[0] = 0
    delta: DeltaText
    logprobs: ReplyLogprobs | None = None


class DeltaReply(ServerMessage):
    """A piece of the reply's text.

    Attributes:
        seq: counts the deltas of an attempt from 0. After a gap, only the final has the text.
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
    """Token counts of a request.

    Attributes:
        cached_tokens: tokens of the prompt that were in the KV cache.
        reasoning_tokens: those of the completion that are thinking.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int
    reasoning_tokens: int = 0


class ReplyTimings(Part):
    """The engine's times of a request, in milliseconds. A time that does not exist is None.

    Attributes:
        queue_ms: from arrival to the first step that computed the request.
        ttft_ms: from arrival to the first token.
        tpot_ms: the mean time of each token after the first.
        e2e_ms: from arrival to the end.
        thinking_ms: from the first token to the last one that is thinking.
    """

    queue_ms: float | None
    ttft_ms: float | None
    tpot_ms: float | None
    e2e_ms: float | None
    thinking_ms: float | None = None


class ReplyFunction(Part):
    """A function that the model calls, with its arguments: a JSON object, as text."""

    name: str
    arguments: str


class ReplyCall(Part):
    """A call of a tool, in the shape that OpenAI clients know.

    Attributes:
        id: the call's own; None if the model wrote none.
    """

    id: str | None
    type: Literal["function"]
    function: ReplyFunction


class Final(ServerMessage):
    """The end of an attempt that succeeded, with the whole text.

    Attributes:
        last_seq: the `seq` of the last delta; -1 if there was none.
        reasoning_content: the model's thinking before the text; None if there is none.
        tool_calls: the tools that the model calls; None if it calls none, or in an unknown format.
            The text has them too, as the model wrote them.
        logprobs: those of all tokens of the reply; None if the request wants none.
        prompt_logprobs: for each token of the prompt it and the likeliest ones, by their ids, and
            None for the first one; None if the request wants none.
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
    reasoning_content: str | None = None
    tool_calls: list[ReplyCall] | None = None
    logprobs: ReplyLogprobs | None = None
    prompt_logprobs: list[dict[str, PromptChoice] | None] | None = None


class ErrorBody(Part):
    """An error, in the shape that OpenAI clients know.

    Attributes:
        param: the field at fault, as a dotted path; None if no field is.
        retryable: whether the same request under the same id may succeed later.
    """

    type: str
    code: int
    message: str
    param: str | None
    retryable: bool

    @staticmethod
    def of(fault: Fault) -> ErrorBody:
        return ErrorBody(
            type=fault.type,
            code=fault.code,
            message=fault.message,
            param=fault.param,
            retryable=fault.retryable,
        )


class ErrorReply(ServerMessage):
    """The end of an attempt that failed, or a refusal.

    Attributes:
        attempt: the run that failed; None if the request was refused before it was run.
        retry_after_ms: milliseconds after which to retry; None if not known.
        queue_depth: the number of waiting requests, if the request was refused for that.
        last_seq: the `seq` of the last delta; -1 if there was none, None if not known.
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
    """Parse a reply.

    Raises:
        ValueError: the payload is no reply of this version.
    """
    return _REPLY.validate_json(payload)
