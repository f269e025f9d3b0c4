"""Requests that are refused: one sentence with the field, the value and what is allowed."""

from __future__ import annotations

import json
import re

import pytest
from pydantic import ValidationError

from app.gateway.faults import MAX_MESSAGE, Fault
from app.gateway.mqtt.protocol.parsing import parse_request
from app.gateway.mqtt.protocol.replies import ErrorBody
from app.gateway.mqtt.protocol.requests import ChatRequest
from app.gateway.mqtt.protocol.topics import Caller
from app.gateway.mqtt.protocol.turns import ChatTurn
from engine.api.errors import InvalidRequestError
from engine.api.sampling import MAX_BIASES
from tests.support.chat_requests import CALLER, HI, body, refused

TEXT_PART = {"type": "text", "text": "Hi"}
IMAGE_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def turns(*roles: str) -> list[dict[str, str]]:
    return [{"role": role, "content": "x"} for role in roles]


def calling(calls: object) -> bytes:
    """A request whose first message calls tools."""
    return body(messages=[{"role": "assistant", "content": "", "tool_calls": calls}, *HI])


FUNCTION = {"name": "f", "arguments": "{}"}
BIG = b'{"messages": [{"role": "user", "content": "x"}], "%s": %s}'


BAD: dict[str, tuple[bytes, str, str | None]] = {
    "empty": (b"", "the request cannot be read as JSON: EOF while", None),
    "bad utf-8": (b'{"messages": "\xff"}', "cannot be read as JSON: invalid unicode", None),
    "surrogate": (b'{"messages": "\\ud800"}', "cannot be read as JSON: ", None),
    "deep": (b'{"v":' * 10_000, "cannot be read as JSON: recursion limit", None),
    "5,000 digits": (BIG % (b"seed", b"9" * 5_000), "cannot be read as JSON: number out", None),
    "list": (b"[]", "the request is []; it must be an object with messages", None),
    "nothing": (b"{}", "messages is missing; it must be a list of 1 to 1000", "messages"),
    "unknown": (
        body(temprature=1),
        "temprature is not a field of a request; allowed are v, request_id, session_id, model,",
        "temprature",
    ),
    "message": (
        body(messages=["hi"]),
        "messages.0 is 'hi'; it must be an object with role and content",
        "messages.0",
    ),
    "role": (
        body(messages=[*HI, *turns("function")]),
        "messages.1.role is 'function'; it must be one of system, user, assistant, tool",
        "messages.1.role",
    ),
    "image": (
        body(messages=[*HI, {"role": "user", "content": [TEXT_PART, IMAGE_PART]}]),
        "messages.1.content has a part of type 'image_url'; models are served for text only, so it "
        "must be text",
        "messages.1.content",
    ),
    "user's call": (
        body(messages=[{"role": "user", "content": "x", "tool_calls": []}]),
        "messages.0.tool_calls is stated of the role 'user'; only the role assistant has it",
        "messages.0.tool_calls",
    ),
    "answer to nobody": (
        body(messages=[*HI, *turns("tool", "user")]),
        "messages.1.role is 'tool'; before it must be the assistant's message that called it",
        "messages.1.role",
    ),
    "call": (
        calling([7]),
        "messages.0.tool_calls.0 is 7; it must be an object with function",
        "messages.0.tool_calls.0",
    ),
    "field of a call": (
        calling([{"function": FUNCTION, "index": 0}]),
        "messages.0.tool_calls.0.index is not a field of a call; allowed are function, type, id",
        "messages.0.tool_calls.0.index",
    ),
    "tool's name": (
        body(tools=[{"type": "function", "function": {"name": ""}}]),
        "tools[0].function.name is ''; it must be a text of 1 to 256 characters",
        "tools",
    ),
    "structure": (
        body(structure=["a"]),
        "structure is ['a']; it must be a map of one of json_schema, json_object, regex, choice",
        "structure",
    ),
    "last": (
        body(messages=turns("user", "assistant")),
        "messages.1.role is 'assistant'; the last message must be the user's or a tool's",
        "messages.1.role",
    ),
    "session": (
        body(session_id="s", messages=turns("user", "assistant", "user")),
        "messages has the roles user, assistant, user; with session_id it must be",
        "messages",
    ),
    "long session": (
        body(session_id="s", messages=HI * 1000),
        "messages has the roles user, user, user, user, …; with session_id",
        "messages",
    ),
    "other id": (
        body(request_id="r2"),
        "request_id is 'r2'; it must be that of the topic, 'r1'",
        "request_id",
    ),
    "min": (
        body(min_tokens=5, max_tokens=2),
        "min_tokens is 5; it must be at most max_tokens (2)",
        "min_tokens",
    ),
    "empty stop": (body(stop=""), "stop is ('',); it must be a list of non-empty", "stop"),
    "all stops": (body(stop=[1] * 60_000), "stop is [1, 1, 1, 1, 1, 1, ...]; it must be", "stop"),
    "argument": (
        body(chat_template_kwargs={"chat_template": "x"}),
        "chat_template_kwargs has 'chat_template', which cannot be an argument of a chat template",
        "chat_template_kwargs",
    ),
    "bias range": (
        body(logit_bias={"7": 101}),
        "logit_bias of token id 7 is 101.0; it must be",
        "logit_bias",
    ),
}


@pytest.mark.parametrize(("payload", "part", "param"), BAD.values(), ids=BAD)
def test_a_bad_request_is_told_what_is_wrong(payload: bytes, part: str, param: str | None) -> None:
    fault = refused(payload)
    assert part in fault.message
    assert (fault.code, fault.type, fault.param) == (400, "invalid_request_error", param)
    assert not fault.retryable
    assert fault.message.isprintable()
    assert len(fault.message) <= MAX_MESSAGE
    ErrorBody.of(fault)


def test_each_field_has_a_sentence() -> None:
    """A value that is of no type of any field is refused by its name, whichever it is."""
    for name in ChatRequest.model_fields:
        for value in ({"a": 1}, [[]], "x" * 500, True, -1e300):
            payload = json.dumps({"messages": HI, name: value}).encode()
            try:
                request = parse_request(payload, CALLER)
            except Fault as fault:
                told = fault
            else:
                assert getattr(request, name) == value
                continue
            assert (told.param or "").split(".")[0] == name
            assert re.match(rf"{name}\b.*; ", told.message)


def test_all_requests_of_a_client_are_for_cancels_only() -> None:
    with pytest.raises(Fault, match=r"^request_id is '\*'; that is for cancels only$"):
        parse_request(body(), Caller("default", "alice", "phone", "*"))


def test_the_first_of_several_faults_is_told() -> None:
    assert refused(body(top_k="x", seed="y", v=3)).param == "v"


def test_a_client_cannot_make_a_wrong_one_either() -> None:
    turn = ChatTurn(role="user", content="hi")
    with pytest.raises(InvalidRequestError, match="top_p is"):
        ChatRequest(messages=(turn,), top_p=2.0)
    with pytest.raises(InvalidRequestError, match="the last message must be the user's"):
        ChatRequest(messages=(ChatTurn(role="assistant", content="hi"),))
    with pytest.raises(ValidationError, match="deadline_ms"):
        ChatRequest(messages=(turn,), deadline_ms=0)
    assert parse_request(ChatRequest(messages=(turn,), stop="x").encode(), CALLER).stop == "x"


MANY = {f"f{number}": 1 for number in range(20_000)}
HOSTILE: dict[str, tuple[bytes, str]] = {
    "fields": (body(**MANY), "f0"),
    "fields of a message": (body(messages=[{**HI[0], **MANY}]), "messages.0.f0"),
    "fields of a call": (calling([MANY]), "messages.0.tool_calls.0.f0"),
    "fields of a function": (
        calling([{"function": MANY}]),
        "messages.0.tool_calls.0.function.f0",
    ),
    "calls in great number": (
        calling([{f"f{number}": 1} for number in range(9_000)]),
        "messages.0.tool_calls.0.function",
    ),
    "biases": (body(logit_bias={str(number): "x" for number in range(18_000)}), "logit_bias"),
}


@pytest.mark.parametrize(("payload", "param"), HOSTILE.values(), ids=HOSTILE)
def test_of_very_many_faults_few_are_collected(
    monkeypatch: pytest.MonkeyPatch, payload: bytes, param: str
) -> None:
    """Each takes 4 us of the loop that serves everybody."""
    collected = 0
    validate = ChatRequest.model_validate_json

    def counted(payload: bytes) -> ChatRequest:
        nonlocal collected
        try:
            return validate(payload)
        except ValidationError as error:
            collected += error.error_count()
            raise

    monkeypatch.setattr(ChatRequest, "model_validate_json", counted)
    assert refused(payload).param == param
    assert collected <= MAX_BIASES + len(ChatRequest.model_fields)


def test_what_a_message_has_wrong_is_collected_once() -> None:
    """Each fault has its input made Python objects: 10 ms where that is 250 kB of `{}`."""
    payload = b'{"messages": [{"role": "user", "content": [{}, {}, {}]}]}'
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate_json(payload)
    assert [detail["loc"] for detail in caught.value.errors()] == [("messages", 0, "content")]
    assert refused(payload).message == "messages.0.content is [{}, {}, {}]; it must be text"
