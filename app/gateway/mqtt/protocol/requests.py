"""ChatRequest: what a client asks. It is checked before anything else sees it."""

from __future__ import annotations

import hashlib
import json
import reprlib
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError, from_json

from app.gateway.mqtt.protocol.faults import Fault
from app.gateway.mqtt.protocol.topics import EVERY, LEVEL, MAX_LEVEL, Caller, check_level
from engine.api.errors import EngineError, InvalidRequestError
from engine.api.sampling import MAX_BIASES, MAX_STOPS, SamplingParams
from engine.core.admission import MAX_PRIORITY

MAX_MESSAGES = 1_000
MAX_DEADLINE_MS = 86_400_000

SAMPLING = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
    "min_tokens",
    "stop",
    "chat_template_kwargs",
)

# What each field must be. The engine says it of the other fields, which are sampling parameters.
ALLOWED = {
    "v": "1",
    "request_id": f"that of the topic: {LEVEL}",
    "session_id": LEVEL,
    "model": "text",
    "messages": f"a list of 1 to {MAX_MESSAGES} messages",
    "messages.*": "an object with role and content",
    "messages.*.role": "one of system, user, assistant",
    "messages.*.content": "text",
    "logit_bias": "a map of token ids to numbers from -100 to 100",
    "logit_bias.*": "a number from -100 to 100",
    "stop": f"text or a list of at most {MAX_STOPS} texts, none of them empty",
    "chat_template_kwargs": "a map of names to values",
    "stream": "true or false",
    "accepted": "true or false",
    "delta_qos": "0 or 1",
    "deadline_ms": f"an integer from 1 to {MAX_DEADLINE_MS}",
    "priority": f"an integer from {-MAX_PRIORITY} to {MAX_PRIORITY}",
    "sent_at": "a number of seconds since the epoch",
}
_DEPTHS = {"messages": 3, "logit_bias": 2}
_MAX_NAME = 64


def _integer(value: object) -> object:
    # Without this, a literal of pydantic takes true for 1.
    if type(value) is not int:
        raise ValueError
    return value


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ChatTurn(_Wire):
    """One message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


def _not_empty(turns: tuple[ChatTurn, ...]) -> tuple[ChatTurn, ...]:
    if not turns:
        raise PydanticCustomError("too_short", "it must have a message")
    return turns


# One fault is enough for a list that is wrong throughout: 125,000 faults took 0.2 s. The least
# length is for the schema alone: pydantic takes a list that fails fast for one that is too short
# as well, and makes Python objects of all that is in it for each fault.
_Turns = Annotated[
    tuple[ChatTurn, ...],
    Field(max_length=MAX_MESSAGES, fail_fast=True, json_schema_extra={"minItems": 1}),
    AfterValidator(_not_empty),
]
_Stops = Annotated[tuple[str, ...], Field(max_length=MAX_STOPS, fail_fast=True)]
_LEVEL_SCHEMA = WithJsonSchema(
    {"type": "string", "minLength": 1, "maxLength": MAX_LEVEL, "pattern": "^[^ /+#]+$"}
)


class ChatRequest(_Wire):
    """A request for the next message of a chat.

    Attributes:
        request_id: if stated, it must be that of the topic.
        session_id: names a conversation that the server keeps for the user.
        model: if stated, this model must be loaded.
        messages: the whole chat, ending with a message of the user. With `session_id`, only what is
            new: one message of the user and, where the session begins, a system message before it.
        stream: whether deltas are wanted.
        accepted: whether a message is wanted that says that the request was accepted.
        delta_qos: the quality of service of the deltas.
        deadline_ms: milliseconds that the request may wait for the batch.
        priority: requests with a larger one go first, as far as the user's quota allows.
        sent_at: when the request was published, in seconds since the epoch by the client's clock.
            It is used for measuring only.

    The other fields are those of `engine.api.sampling.SamplingParams`; None is the model's default.
    """

    v: Annotated[Literal[1], BeforeValidator(_integer)] = 1
    request_id: (
        Annotated[str, AfterValidator(partial(check_level, "request_id")), _LEVEL_SCHEMA] | None
    ) = None
    session_id: (
        Annotated[str, AfterValidator(partial(check_level, "session_id")), _LEVEL_SCHEMA] | None
    ) = None
    model: str | None = None
    messages: _Turns
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    min_tokens: int | None = None
    stop: str | _Stops | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    stream: bool = True
    accepted: bool = True
    delta_qos: Annotated[Literal[0, 1], BeforeValidator(_integer)] = 0
    deadline_ms: Annotated[int, Field(ge=1, le=MAX_DEADLINE_MS)] | None = None
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0
    sent_at: float | None = None

    @model_validator(mode="after")
    def _check(self) -> ChatRequest:
        """
        Raises:
            InvalidRequestError: fields do not go together, or a sampling parameter is wrong.
        """
        roles = [turn.role for turn in self.messages]
        if self.session_id is not None and roles not in (["user"], ["system", "user"]):
            raise InvalidRequestError(
                f"messages has the roles {_roles(roles)}; with session_id it must be what is new: "
                "one user message, before it a system message if the session begins",
                "messages",
            )
        if roles[-1] != "user":
            raise InvalidRequestError(
                f"messages.{len(roles) - 1}.role is {roles[-1]!r}; the last message must be the "
                "user's",
                f"messages.{len(roles) - 1}.role",
            )
        SamplingParams().override(self.sampling())
        return self

    def sampling(self) -> dict[str, object]:
        """The sampling parameters that were stated, by their names in
        `engine.api.sampling.SamplingParams`."""
        stated = {name: getattr(self, name) for name in SAMPLING}
        if isinstance(self.stop, str):
            stated["stop"] = (self.stop,)
        return {name: value for name, value in stated.items() if value is not None}

    def digest(self) -> str:
        """The SHA-256, in hexadecimal digits, of all fields but `sent_at`. A request that is sent
        again has the same one."""
        fields = self.model_dump(exclude={"sent_at"})
        if self.chat_template_kwargs is None:
            # Requests that were journalled before there was this field keep their digests.
            del fields["chat_template_kwargs"]
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()

    def encode(self) -> bytes:
        """Compact JSON in UTF-8, without what is None."""
        return self.model_dump_json(exclude_none=True).encode()


def parse_request(payload: bytes, caller: Caller) -> ChatRequest:
    """Read a request.

    Args:
        caller: who asks, as the topic says on which the payload came.

    Raises:
        Fault: 400, with one sentence that says what is wrong first.
    """
    if caller.request_id == EVERY:
        raise Fault(400, f"request_id is {EVERY!r}; that is for cancels only", "request_id")
    _check_counts(payload)
    try:
        request = ChatRequest.model_validate_json(payload)
    except ValidationError as error:
        raise _fault(error.errors(include_url=False)[0]) from None
    except EngineError as error:
        raise Fault.of(error.info()) from None
    if request.request_id not in (None, caller.request_id):
        raise Fault(
            400,
            f"request_id is {request.request_id!r}; it must be that of the topic, "
            f"{caller.request_id!r}",
            "request_id",
        )
    return request


def _check_counts(payload: bytes) -> None:
    """Bound the number of faults before pydantic collects them all: 20,000 took 30 ms of CPU time
    (AMD EPYC, best of seven).

    The payload is parsed once more for this, for a strict pydantic model takes lists for tuples
    only from JSON, not from parsed data. Faults in great number need keys, and each key has a
    colon, so a payload with few colons is not parsed here.

    Raises:
        Fault: there are more fields than a request has, or more biases than are allowed.
    """
    if payload.count(b":") <= MAX_BIASES:
        return
    try:
        told = from_json(payload)
    except ValueError:
        return  # pydantic says why it cannot be read
    if not isinstance(told, dict):
        return
    _check_fields(told, ChatRequest)
    messages, biases = told.get("messages"), told.get("logit_bias")
    if isinstance(messages, list):
        for number, message in enumerate(messages[:MAX_MESSAGES]):
            if isinstance(message, dict):
                _check_fields(message, ChatTurn, f"messages.{number}.")
    if isinstance(biases, dict) and len(biases) > MAX_BIASES:
        text = f"logit_bias has {len(biases)} entries; at most {MAX_BIASES} are allowed"
        raise Fault(400, text, "logit_bias")


def _check_fields(told: dict[str, object], model: type[_Wire], place: str = "") -> None:
    """Check that an object has no more fields than its model.

    Raises:
        Fault: it has more; the fault names the first one that the model lacks.
    """
    if len(told) > len(model.model_fields):
        unknown = next(name for name in told if name not in model.model_fields)
        raise _no_field(f"{place}{_name(unknown)}", model)


def _no_field(path: str, model: type[_Wire]) -> Fault:
    noun = "request" if model is ChatRequest else "message"
    names = ", ".join(model.model_fields)
    return Fault(400, f"{path} is no field of a {noun}; allowed are {names}", path)


def _fault(detail: ErrorDetails) -> Fault:
    """What pydantic found, as a fault."""
    place, value = detail["loc"], detail["input"]
    if detail["type"] == "json_invalid":
        return Fault(400, f"the request cannot be read as JSON: {detail['ctx']['error']}")
    if not place:
        return Fault(400, f"the request is {_show(value)}; it must be an object with messages")
    # For a field of several types, pydantic adds the type that it tried; that is dropped.
    place = place[: _DEPTHS.get(str(place[0]), 1)]
    path = ".".join(_name(str(part)) for part in place)
    if detail["type"] == "extra_forbidden":
        return _no_field(path, ChatRequest if len(place) == 1 else ChatTurn)
    allowed = ALLOWED.get(".".join("*" if n == 1 else str(p) for n, p in enumerate(place)))
    if allowed is None:
        return _sampling_fault(path, value)
    if detail["type"] == "missing":
        return Fault(400, f"{path} is missing; it must be {allowed}", path)
    if detail["type"] in ("too_long", "too_short"):
        return Fault(400, f"{path} has {len(value)} entries; it must be {allowed}", path)
    if place[-1] == "content" and (kind := _kind_of_part(value)) is not None:
        text = f"{path} has a part of type {kind!r}; models are served for text only"
        return Fault(400, f"{text}, so it must be {allowed}", path)
    return Fault(400, f"{path} is {_show(value)}; it must be {allowed}", path)


def _kind_of_part(content: object) -> str | None:
    """Type of the first part of a content that is no text, such as `image_url`; None if there is
    none.
    """
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind != "text":
            return _name(kind)
    return None


def _sampling_fault(name: str, value: object) -> Fault:
    """The fault of a value whose type is wrong for its sampling parameter."""
    try:
        SamplingParams().override({name: value})
    except InvalidRequestError as error:
        return Fault.of(error.info())
    return Fault(400, f"{name} is {_show(value)}; it must be a finite number", name)


def _name(part: str) -> str:
    return part if part.isprintable() and len(part) <= _MAX_NAME else reprlib.repr(part)


def _show(value: object) -> str:
    """A value in few characters; null, true and false are written as in JSON."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return reprlib.repr(value)


def _roles(roles: Sequence[str]) -> str:
    """The first few roles, as text."""
    return ", ".join(roles[:4]) + (", …" if len(roles) > 4 else "")
