"""Parsing: turns the payload of a request into a ChatRequest, or into its first fault."""

from __future__ import annotations

import json
import reprlib
from codecs import BOM_UTF8

from pydantic import ValidationError
from pydantic_core import ErrorDetails, from_json

from app.gateway.faults import Fault
from app.gateway.mqtt.protocol.requests import ALLOWED, MAX_MESSAGES, ChatRequest
from app.gateway.mqtt.protocol.topics import EVERY, Caller
from app.gateway.mqtt.protocol.turns import CalledFunction, ChatTurn, TurnCall, Wire
from engine.api.errors import EngineError, InvalidRequestError
from engine.api.sampling import MAX_BIASES, SamplingParams

# The length of a path that names a field; pydantic's types follow it.
_DEPTHS = {"messages": 6, "logit_bias": 2, "tools": 2}
_MAX_NAME = 64

# The model of the field at the end of a path, by the length of the path.
_MODELS: dict[int, type[Wire]] = {1: ChatRequest, 3: ChatTurn, 5: TurnCall, 6: CalledFunction}
_NOUNS: dict[type[Wire], str] = {
    ChatRequest: "request",
    ChatTurn: "message",
    TurnCall: "call",
    CalledFunction: "function",
}


def parse_request(payload: bytes, caller: Caller) -> ChatRequest:
    """Parse a request.

    Args:
        caller: the caller in the payload's topic.

    Raises:
        Fault: 400, with one sentence about the first error.
    """
    if caller.request_id == EVERY:
        raise Fault(400, f"request_id is {EVERY!r}; that is for cancels only", "request_id")
    payload = payload.removeprefix(BOM_UTF8)
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
    """Limit the number of faults before pydantic collects them all: 20,000 took 30 ms of CPU time
    (AMD EPYC, best of seven).

    This parses the payload once more, because a strict pydantic model accepts lists as tuples only
    from JSON, not from parsed data. Many faults need many keys, and each key has a colon, so a
    payload with few colons is not parsed here.

    Raises:
        Fault: there are more fields than a request has, or more biases than allowed.
    """
    if payload.count(b":") <= MAX_BIASES:
        return
    try:
        fields = from_json(payload)
    except ValueError:
        return  # pydantic says why it cannot be parsed
    if not isinstance(fields, dict):
        return
    _check_fields(fields, ChatRequest)
    messages, biases = fields.get("messages"), fields.get("logit_bias")
    if isinstance(messages, list):
        for number, message in enumerate(messages[:MAX_MESSAGES]):
            if isinstance(message, dict):
                _check_message(message, f"messages.{number}.")
    if isinstance(biases, dict) and len(biases) > MAX_BIASES:
        text = f"logit_bias has {len(biases)} entries; at most {MAX_BIASES} are allowed"
        raise Fault(400, text, "logit_bias")


def _check_message(message: dict[str, object], place: str) -> None:
    """As `_check_fields`, for a message and its calls."""
    _check_fields(message, ChatTurn, place)
    calls = message.get("tool_calls")
    for number, call in enumerate(calls if isinstance(calls, list) else ()):
        if isinstance(call, dict):
            _check_fields(call, TurnCall, f"{place}tool_calls.{number}.")
            if isinstance(function := call.get("function"), dict):
                path = f"{place}tool_calls.{number}.function."
                _check_fields(function, CalledFunction, path)


def _check_fields(fields: dict[str, object], model: type[Wire], place: str = "") -> None:
    """Check that an object has no more fields than its model.

    Raises:
        Fault: it has more; the fault names the first one that the model lacks.
    """
    if len(fields) > len(model.model_fields):
        unknown = next(name for name in fields if name not in model.model_fields)
        raise _no_field(f"{place}{_name(unknown)}", model)


def _no_field(path: str, model: type[Wire]) -> Fault:
    names = ", ".join(model.model_fields)
    return Fault(400, f"{path} is not a field of a {_NOUNS[model]}; allowed are {names}", path)


def _fault(detail: ErrorDetails) -> Fault:
    """Pydantic's error as a fault."""
    place, value = detail["loc"], detail["input"]
    if detail["type"] == "json_invalid":
        return Fault(400, f"the request cannot be read as JSON: {detail['ctx']['error']}")
    if not place:
        return Fault(
            400, f"the request is {_format_value(value)}; it must be an object with messages"
        )
    # For a field of several types, pydantic appends the type that it tried; that is dropped.
    place = place[: _DEPTHS.get(str(place[0]), 1)]
    path = ".".join(_name(str(part)) for part in place)
    if detail["type"] == "extra_forbidden":
        return _no_field(path, _MODELS[len(place)])
    pattern = ("*" if n == 1 or isinstance(part, int) else part for n, part in enumerate(place))
    allowed = ALLOWED.get(".".join(pattern))
    if allowed is None:
        return _sampling_fault(path, value)
    if detail["type"] == "missing":
        return Fault(400, f"{path} is missing; it must be {allowed}", path)
    most = detail.get("ctx", {}).get("max_length")
    if detail["type"] == "string_too_long":
        text = f"{path} has {len(value)} characters; at most {most} are allowed"
        return Fault(400, text, path)
    if detail["type"] == "too_long" and "at most" not in allowed and " to " not in allowed:
        return Fault(400, f"{path} has {len(value)} entries; at most {most} are allowed", path)
    if detail["type"] in ("too_long", "too_short"):
        return Fault(400, f"{path} has {len(value)} entries; it must be {allowed}", path)
    if place[-1] == "content" and (kind := _kind_of_part(value)) is not None:
        text = f"{path} has a part of type {kind!r}; models are served for text only"
        return Fault(400, f"{text}, so it must be {allowed}", path)
    return Fault(400, f"{path} is {_format_value(value)}; it must be {allowed}", path)


def _kind_of_part(content: object) -> str | None:
    """The type of the first part of a content that is not text, such as `image_url`; None if there
    is none.
    """
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind != "text":
            return _name(kind)
    return None


def _sampling_fault(name: str, value: object) -> Fault:
    """The fault for a value of the wrong type for its sampling parameter."""
    try:
        SamplingParams().override({name: value})
    except InvalidRequestError as error:
        return Fault.of(error.info())
    return Fault(400, f"{name} is {_format_value(value)}; it must be a finite number", name)


def _name(part: str) -> str:
    return part if part.isprintable() and len(part) <= _MAX_NAME else reprlib.repr(part)


def _format_value(value: object) -> str:
    """A short form of a value; null, true and false are written as in JSON."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return reprlib.repr(value)
