"""ChatRequest: a client's request, which is validated before any other use."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from app.gateway.logprobs import stated_logprobs
from app.gateway.mqtt.protocol.topics import LEVEL, MAX_LEVEL, check_level
from app.gateway.mqtt.protocol.turns import ChatTurn, Wire
from app.gateway.stated import (
    CALLED_WITH,
    Logprobs,
    Model,
    TopLogprobs,
    Whole,
    check_sampling,
    sampled,
    sampling_allowed,
    stated_sampling,
)
from engine.api.errors import InvalidRequestError
from engine.api.sampling import SAMPLING_SPECS
from engine.api.sampling_spec import NumberRange
from engine.core.admission import MAX_CACHE_SALT, MAX_PRIORITY

MAX_MESSAGES = 1_000
MAX_DEADLINE_MS = 86_400_000
_MOST_SECONDS = 2.0**62  # Some clients state nanoseconds.

# Sampling parameters whose errors are the engine's: those of a number state its range.
_ENGINES = {
    "structure",
    *(name for name, spec in SAMPLING_SPECS.items() if isinstance(spec.allowed, NumberRange)),
}

# The allowed values of each field, but for those of `_ENGINES`.
ALLOWED = {
    "v": "1",
    "request_id": f"that of the topic: {LEVEL}",
    "session_id": LEVEL,
    "model": "text",
    "messages": f"a list of 1 to {MAX_MESSAGES} messages",
    "messages.*": "an object with role and content",
    "messages.*.role": "one of system, user, assistant, tool",
    "messages.*.content": "text",
    "messages.*.tool_calls": "a list of calls",
    "messages.*.tool_calls.*": "an object with function and, if it has one, id",
    "messages.*.tool_calls.*.id": "text",
    "messages.*.tool_calls.*.type": "function",
    "messages.*.tool_calls.*.function": "an object with name and arguments",
    "messages.*.tool_calls.*.function.name": "text",
    "messages.*.tool_calls.*.function.arguments": CALLED_WITH,
    "messages.*.tool_call_id": "text",
    "messages.*.name": "text",
    "messages.*.reasoning_content": "text",
    **{name: allowed for name, allowed in sampling_allowed("mqtt").items() if name not in _ENGINES},
    "logit_bias.*": "a number from -100 to 100",
    "logprobs": "true or false",
    "tools.*": "an object with type and function",
    "stream": "true or false",
    "accepted": "true or false",
    "delta_qos": "0 or 1",
    "deadline_ms": f"an integer from 1 to {MAX_DEADLINE_MS}",
    "cache_salt": f"text of 1 to {MAX_CACHE_SALT} characters",
    "priority": f"an integer from {-MAX_PRIORITY} to {MAX_PRIORITY}",
    "sent_at": "a number of seconds since the epoch",
}


def _integer(value: object) -> object:
    # Without this, a literal of pydantic accepts true as 1.
    if type(value) is not int:
        raise ValueError
    return value


def _not_empty(turns: tuple[ChatTurn, ...]) -> tuple[ChatTurn, ...]:
    if not turns:
        raise PydanticCustomError("too_short", "it must have a message")
    return turns


# One fault is enough for a list that is wrong throughout: 125,000 faults took 0.2 s. The minimum
# length is for the schema alone: pydantic reports a list that fails fast as too short as well, and
# makes Python objects of its whole content for each fault.
_Turns = Annotated[
    tuple[ChatTurn, ...],
    Field(max_length=MAX_MESSAGES, fail_fast=True, json_schema_extra={"minItems": 1}),
    AfterValidator(_not_empty),
]
# The fields of the first requests in journals are part of each digest, with null where they are not
# stated. A later field counts only where it is stated, so that it changes no digest in a journal.
_FIRST_FIELDS = frozenset(
    (
        *("v", "request_id", "session_id", "model", "messages", "max_tokens", "temperature"),
        *("top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty"),
        *("frequency_penalty", "logit_bias", "seed", "min_tokens", "stop", "stream", "accepted"),
        *("delta_qos", "deadline_ms", "priority"),
    )
)
_FIRST_OF_TURN = frozenset(("role", "content"))
_LEVEL_SCHEMA = WithJsonSchema(
    {"type": "string", "minLength": 1, "maxLength": MAX_LEVEL, "pattern": "^[^ /+#]+$"}
)


@sampled("mqtt")
class ChatRequest(Wire):
    """A request for the next message of a chat.

    Attributes:
        request_id: if stated, it must be that of the topic.
        session_id: names a conversation that the server stores for the user.
        model: if stated, this model must be loaded.
        messages: the whole chat, ending with a message of the user or of a tool. With `session_id`,
            only the new ones: one message of the user and, at the start of the session, a system
            message before it; or the results of the tools that the last reply called.
        stream: whether to send deltas.
        accepted: whether to send a message when the request is accepted.
        delta_qos: the quality of service of the deltas.
        deadline_ms: milliseconds that the request may wait for the batch.
        priority: requests with a larger one go first, as far as the user's quota allows.
        cache_salt: only requests with the same salt find its prefix in the cache.
        sent_at: when the request was published, in seconds since the epoch by the client's clock.
            It is used for measuring only.
        logprobs: whether each token comes with its log-probability.
        top_logprobs: how many of the likeliest tokens come with each.

    The other fields are those of `engine.api.sampling.SamplingParams`; None is the model's default.
    """

    v: Annotated[Literal[1], BeforeValidator(_integer)] = 1
    request_id: (
        Annotated[str, AfterValidator(partial(check_level, "request_id")), _LEVEL_SCHEMA] | None
    ) = None
    session_id: (
        Annotated[str, AfterValidator(partial(check_level, "session_id")), _LEVEL_SCHEMA] | None
    ) = None
    model: Model | None = None
    messages: _Turns
    stream: bool = True
    accepted: bool = True
    delta_qos: Annotated[Literal[0, 1], BeforeValidator(_integer)] = 0
    deadline_ms: Annotated[int, Field(ge=1, le=MAX_DEADLINE_MS), Whole] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_CACHE_SALT)] | None = None
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY), Whole] = 0
    sent_at: Annotated[float, Field(ge=-_MOST_SECONDS, le=_MOST_SECONDS)] | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    prompt_logprobs: Logprobs | None = None

    @model_validator(mode="after")
    def _check(self) -> ChatRequest:
        """
        Raises:
            InvalidRequestError: fields do not go together, or a sampling parameter is wrong.
        """
        for number, turn in enumerate(self.messages):
            turn.check(f"messages.{number}")
        roles = [turn.role for turn in self.messages]
        is_new = roles in (["user"], ["system", "user"]) or {*roles} == {"tool"}
        if self.session_id is not None and not is_new:
            raise InvalidRequestError(
                f"messages has the roles {_roles(roles)}; with session_id it must be what is new: "
                "one user message, before it a system message if the session begins, or tool "
                "messages",
                "messages",
            )
        for number, (before, role) in enumerate(pairwise(["", *roles])):
            is_answer = before in ("assistant", "tool") or self.session_id is not None
            if role == "tool" and not is_answer:
                path = f"messages.{number}.role"
                text = f"{path} is 'tool'; before it must be the assistant's message that called it"
                raise InvalidRequestError(text, path)
        if roles[-1] not in ("user", "tool"):
            raise InvalidRequestError(
                f"messages.{len(roles) - 1}.role is {roles[-1]!r}; the last message must be the "
                "user's or a tool's",
                f"messages.{len(roles) - 1}.role",
            )
        check_sampling(self.sampling(), "mqtt")
        return self

    def sampling(self) -> dict[str, object]:
        """The stated sampling parameters, by their names in `engine.api.sampling.SamplingParams`.

        Raises:
            InvalidRequestError: fields contradict each other.
        """
        stated = stated_sampling(self, "mqtt")
        stated["logprobs"] = stated_logprobs(self.logprobs, self.top_logprobs)
        return {name: value for name, value in stated.items() if value is not None}

    def digest(self) -> str:
        """The SHA-256, in hexadecimal digits, of all fields but `sent_at`. A request that is sent
        again has the same one."""
        fields = {
            name: value
            for name, value in self.model_dump(exclude={"sent_at"}).items()
            if name in _FIRST_FIELDS or value != type(self).model_fields[name].default
        }
        fields["messages"] = [
            {
                name: value
                for name, value in turn.items()
                if name in _FIRST_OF_TURN or value is not None
            }
            for turn in fields["messages"]
        ]
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()

    def encode(self) -> bytes:
        """Compact JSON in UTF-8, without fields that are None."""
        return self.model_dump_json(exclude_none=True).encode()


def _roles(roles: Sequence[str]) -> str:
    """The first few roles, as text."""
    return ", ".join(roles[:4]) + (", …" if len(roles) > 4 else "")
