from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from app.gateway.mqtt.protocol import requests
from app.gateway.mqtt.protocol.cards import (
    Limits,
    Metrics,
    ModelInfo,
    MqttMetrics,
    NodeCard,
    Percentiles,
)
from app.gateway.mqtt.protocol.faults import MAX_MESSAGE, Fault
from app.gateway.mqtt.protocol.replies import (
    Accepted,
    Choice,
    DeltaReply,
    DeltaText,
    ErrorReply,
    Final,
    ReplyTimings,
    ReplyUsage,
    parse_reply,
)
from app.gateway.mqtt.protocol.requests import ChatRequest, ChatTurn, parse_request
from app.gateway.mqtt.protocol.schema import json_schema
from app.gateway.mqtt.protocol.topics import Caller
from engine.errors import InvalidRequestError
from engine.request import SamplingParams

CALLER = Caller("default", "alice", "phone", "r1")
HI = [{"role": "user", "content": "hi"}]


def parse(**fields: Any) -> ChatRequest:
    return parse_request(json.dumps({"messages": HI, **fields}).encode(), CALLER)


def refused(payload: bytes) -> Fault:
    with pytest.raises(Fault) as told:
        parse_request(payload, CALLER)
    return told.value


def test_messages_are_enough() -> None:
    request = parse()
    assert request == ChatRequest(messages=(ChatTurn(role="user", content="hi"),))
    assert (request.v, request.stream, request.accepted) == (1, True, True)
    assert (request.delta_qos, request.priority) == (0, 0)
    assert request.sampling() == {}


FULL: dict[str, Any] = {
    "v": 1,
    "request_id": "r1",
    "session_id": None,
    "model": "builtin",
    "messages": [
        {"role": "system", "content": ""},
        {"role": "user", "content": "a\u0000é😀"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ],
    "max_tokens": 256,
    "temperature": 1,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "presence_penalty": -2,
    "frequency_penalty": 2.0,
    "logit_bias": {"262": -100, "7": 1.5},
    "seed": 2**64 - 1,
    "min_tokens": 2,
    "stop": ["\n\n", "END"],
    "stream": False,
    "accepted": False,
    "delta_qos": 1,
    "deadline_ms": 86_400_000,
    "priority": -1_000_000,
    "sent_at": 1_700_000_000.25,
}


def test_every_field_is_taken() -> None:
    assert list(FULL) == list(ChatRequest.model_fields)
    request = parse(**FULL)
    told = json.loads(request.model_dump_json())
    assert told == FULL
    sampling = request.sampling()
    assert list(sampling) == list(requests.SAMPLING)
    assert sampling == {name: FULL[name] for name in requests.SAMPLING} | {"stop": ("\n\n", "END")}
    params = SamplingParams().override(sampling)
    assert (params.seed, params.stop) == (2**64 - 1, ("\n\n", "END"))
    assert dict(params.logit_bias) == {262: -100, 7: 1.5}


def test_each_sampling_field_is_the_engines() -> None:
    engine = set(SamplingParams.__slots__)
    assert set(requests.SAMPLING) <= engine & set(ChatRequest.model_fields)
    # Log-probabilities have no place in a reply yet, ids and the end of sequence none in a chat.
    assert engine - set(requests.SAMPLING) == {"logprobs", "stop_token_ids", "ignore_eos"}


def test_one_text_stops_too() -> None:
    assert parse(stop="END").sampling() == {"stop": ("END",)}


@pytest.mark.parametrize("roles", [["user"], ["system", "user"]], ids=lambda roles: "-".join(roles))
def test_a_session_takes_what_is_new(roles: list[str]) -> None:
    messages = [{"role": role, "content": "x"} for role in roles]
    request = parse(session_id="s", messages=messages)
    assert [turn.role for turn in request.messages] == roles


def body(**fields: Any) -> bytes:
    return json.dumps({"messages": HI, **fields}).encode()


def turns(*roles: str) -> list[dict[str, str]]:
    return [{"role": role, "content": "x"} for role in roles]


BIG = b'{"messages": [{"role": "user", "content": "x"}], "%s": %s}'
BAD: dict[str, tuple[bytes, str, str | None]] = {
    "empty": (b"", "the request cannot be read as JSON: EOF while", None),
    "binary": (b"\x00\xff", "the request cannot be read as JSON: ", None),
    "bad utf-8": (b'{"messages": "\xff"}', "cannot be read as JSON: invalid unicode", None),
    "utf-16": ('{"messages": 1}'.encode("utf-16"), "cannot be read as JSON", None),
    "surrogate": (b'{"messages": "\\ud800"}', "cannot be read as JSON: ", None),
    "surrogate key": (b'{"\\udfff": 1}', "cannot be read as JSON: ", None),
    "deep": (b'{"v":' * 10_000, "cannot be read as JSON: recursion limit", None),
    "deep and whole": (b"[" * 10_000 + b"]" * 10_000, "recursion limit", None),
    "cut": (body()[:-1], "cannot be read as JSON: EOF", None),
    "more": (body() + b"{}", "cannot be read as JSON: trailing characters", None),
    "5,000 digits": (BIG % (b"seed", b"9" * 5_000), "cannot be read as JSON: number out", None),
    "list": (b"[]", "the request is []; it must be an object with messages", None),
    "null": (b"null", "the request is null; it must be an object", None),
    "text": (b'"hi"', "the request is 'hi'; it must be an object", None),
    "nothing": (b"{}", "messages is missing; it must be a list of 1 to 1000", "messages"),
    "unknown": (
        body(temprature=1),
        "temprature is no field of a request; allowed are v, request_id, session_id, model,",
        "temprature",
    ),
    "escape": (body(**{"\x1b[2J": 1}), "'\\x1b[2J' is no field of a request", "'\\x1b[2J'"),
    "long name": (
        body(**{"k" * 999: 1}),
        "'kkkkkkkkkkkk...kkkkkkkkkkkkk' is no field",
        "'kkkkkkkkkkkk...kkkkkkkkkkkkk'",
    ),
    "version": (body(v=2), "v is 2; it must be 1", "v"),
    "true version": (body(v=True), "v is true; it must be 1", "v"),
    "no messages": (body(messages=[]), "messages has 0 entries; it must be a list", "messages"),
    "many": (
        body(messages=HI * 1001),
        "messages has 1001 entries; it must be a list of 1 to 1000 messages",
        "messages",
    ),
    "messages": (body(messages="hi"), "messages is 'hi'; it must be a list of 1", "messages"),
    "message": (
        body(messages=["hi"]),
        "messages.0 is 'hi'; it must be an object with role and content",
        "messages.0",
    ),
    "role": (
        body(messages=[*HI, *turns("tool")]),
        "messages.1.role is 'tool'; it must be one of system, user,",
        "messages.1.role",
    ),
    "content": (
        body(messages=[{"role": "user", "content": [1]}]),
        "messages.0.content is [1]; it must be text",
        "messages.0.content",
    ),
    "no content": (
        body(messages=[{"role": "user"}]),
        "messages.0.content is missing; it must be text",
        "messages.0.content",
    ),
    "name": (
        body(messages=[{"role": "user", "content": "", "name": "x"}]),
        "messages.0.name is no field of a message; allowed are role, content",
        "messages.0.name",
    ),
    "last": (
        body(messages=turns("user", "assistant")),
        "messages.1.role is 'assistant'; the last message must be the user's",
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
    "session id": (
        body(session_id="a/b"),
        "session_id is 'a/b'; it must be 1 to 128",
        "session_id",
    ),
    "empty session": (body(session_id=""), "session_id is ''; it must be 1 to 128", "session_id"),
    "other id": (
        body(request_id="r2"),
        "request_id is 'r2'; it must be that of the topic, 'r1'",
        "request_id",
    ),
    "id": (body(request_id=7), "request_id is 7; it must be that of the topic: 1 to", "request_id"),
    "model": (body(model=1), "model is 1; it must be text", "model"),
    "stream": (body(stream=1), "stream is 1; it must be true or false", "stream"),
    "null stream": (body(stream=None), "stream is null; it must be true or false", "stream"),
    "accepted": (body(accepted="no"), "accepted is 'no'; it must be true or false", "accepted"),
    "qos": (body(delta_qos=2), "delta_qos is 2; it must be 0 or 1", "delta_qos"),
    "true qos": (body(delta_qos=True), "delta_qos is true; it must be 0 or 1", "delta_qos"),
    "deadline": (
        body(deadline_ms=0),
        "deadline_ms is 0; it must be an integer from 1 to 86400000",
        "deadline_ms",
    ),
    "late": (body(deadline_ms=86_400_001), "deadline_ms is 86400001; it must be", "deadline_ms"),
    "part": (body(deadline_ms=1.0), "deadline_ms is 1.0; it must be an integer", "deadline_ms"),
    "priority": (
        body(priority=1_000_001),
        "priority is 1000001; it must be an integer from -1",
        "priority",
    ),
    "sent": (body(sent_at=float("nan")), "sent_at is nan; it must be a number of", "sent_at"),
    "temperature": (
        body(temperature="hot"),
        "temperature is 'hot'; it must be a number from 0 to 100",
        "temperature",
    ),
    "range": (body(temperature=101), "temperature is 101.0; it must be a number", "temperature"),
    "nan": (body(top_p=float("nan")), "top_p is nan; it must be a number above 0", "top_p"),
    "infinity": (body(min_p=float("inf")), "min_p is inf; it must be a number from", "min_p"),
    "1e999": (BIG % (b"top_p", b"1e999"), "top_p is inf; it must be a number above 0", "top_p"),
    "huge float": (
        BIG % (b"top_p", b"9" * 4_000),
        "99999; it must be a number above 0 and at most 1",
        "top_p",
    ),
    "huge int": (BIG % (b"seed", b"9" * 4_000), "999; it must be an integer from 0 to", "seed"),
    "half": (body(max_tokens=1.5), "max_tokens is 1.5; it must be an integer from", "max_tokens"),
    "none": (body(max_tokens=0), "max_tokens is 0; it must be an integer from 1", "max_tokens"),
    "min": (
        body(min_tokens=5, max_tokens=2),
        "min_tokens is 5; it must be at most max_tokens (2)",
        "min_tokens",
    ),
    "stop": (body(stop=[1]), "stop is [1]; it must be text or a list of at most 16 texts", "stop"),
    "empty stop": (body(stop=""), "stop is ('',); it must be a list of non-empty", "stop"),
    "stops": (
        body(stop=["x"] * 17),
        "...]; it must be text or a list of at most 16 texts, none",
        "stop",
    ),
    "all stops": (body(stop=[1] * 60_000), "stop is [1, 1, 1, 1, 1, 1, ...]; it must be", "stop"),
    "bias": (body(logit_bias=[]), "logit_bias is []; it must be a map of token ids", "logit_bias"),
    "bias key": (body(logit_bias={"x": 1}), "logit_bias has the key 'x'; it must be", "logit_bias"),
    "bias value": (
        body(logit_bias={"7": "x"}),
        "logit_bias.7 is 'x'; it must be a number from",
        "logit_bias.7",
    ),
    "bias range": (
        body(logit_bias={"7": 101}),
        "logit_bias of token id 7 is 101.0; it must be",
        "logit_bias",
    ),
    "biases": (
        body(logit_bias={str(n): 1 for n in range(1025)}),
        "logit_bias has 1025 entries; at most 1024",
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
    fault.body()


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


def test_the_last_of_two_equal_keys_counts() -> None:
    payload = b'{"seed": "x", "messages": [{"role": "user", "content": "hi"}], "seed": 3}'
    assert parse_request(payload, CALLER).seed == 3


def test_a_client_cannot_make_a_wrong_one_either() -> None:
    turn = ChatTurn(role="user", content="hi")
    with pytest.raises(InvalidRequestError, match="top_p is"):
        ChatRequest(messages=(turn,), top_p=2.0)
    with pytest.raises(InvalidRequestError, match="the last message must be the user's"):
        ChatRequest(messages=(ChatTurn(role="assistant", content="hi"),))
    with pytest.raises(ValidationError, match="deadline_ms"):
        ChatRequest(messages=(turn,), deadline_ms=0)
    assert parse_request(ChatRequest(messages=(turn,), stop="x").encode(), CALLER).stop == "x"


def test_a_request_sent_again_has_the_same_digest() -> None:
    first = parse(**FULL)
    assert len(first.digest()) == 64
    fields = list(FULL.items())
    for number in range(20):
        random.Random(number).shuffle(fields)
        again = dict(fields, sent_at=float(number))
        again["logit_bias"] = dict(reversed(again["logit_bias"].items()))
        indent = number % 3 or None
        payload = json.dumps(again, indent=indent, ensure_ascii=number % 2 == 0).encode()
        assert parse_request(payload, CALLER).digest() == first.digest()


CHANGED: dict[str, Any] = {
    "request_id": None,
    "session_id": "s",
    "model": "other",
    "messages": [*FULL["messages"][:-1], {"role": "user", "content": "d"}],
    "max_tokens": 255,
    "temperature": 0.5,
    "top_p": None,
    "top_k": 41,
    "min_p": 0.051,
    "repetition_penalty": 1.2,
    "presence_penalty": -1,
    "frequency_penalty": 1,
    "logit_bias": {"262": -100, "8": 1.5},
    "seed": 0,
    "min_tokens": 1,
    "stop": ["\n\n"],
    "stream": True,
    "accepted": True,
    "delta_qos": 0,
    "deadline_ms": 1,
    "priority": 0,
}


@pytest.mark.parametrize("name", CHANGED)
def test_another_request_has_another_digest(name: str) -> None:
    before = FULL | {"messages": HI} if name == "session_id" else FULL
    assert parse(**before).digest() != parse(**before | {name: CHANGED[name]}).digest()


def test_whatever_counts_is_in_the_digest() -> None:
    assert {*CHANGED, "v", "sent_at"} == set(ChatRequest.model_fields)


USAGE = ReplyUsage(prompt_tokens=9, completion_tokens=7, total_tokens=16, cached_tokens=0)
TIMINGS = ReplyTimings(queue_ms=1.25, ttft_ms=20.0, tpot_ms=None, e2e_ms=61.7)
REPLIES: dict[str, tuple[Accepted | DeltaReply | Final | ErrorReply, dict[str, Any]]] = {
    "accepted": (
        Accepted(request_id="r1", attempt=1, queue_depth=3, priority=0, model="builtin"),
        {"attempt": 1, "queue_depth": 3, "priority": 0, "model": "builtin"},
    ),
    "delta": (
        DeltaReply(
            request_id="r1",
            attempt=1,
            seq=0,
            choices=[Choice(index=0, delta=DeltaText(content="é\n"))],
        ),
        {"attempt": 1, "seq": 0, "choices": [{"index": 0, "delta": {"content": "é\n"}}]},
    ),
    "final": (
        Final(
            request_id="r1",
            attempt=2,
            last_seq=-1,
            text="é",
            finish_reason="length",
            model="builtin",
            usage=USAGE,
            timings=TIMINGS,
        ),
        {
            "attempt": 2,
            "last_seq": -1,
            "text": "é",
            "finish_reason": "length",
            "model": "builtin",
            "usage": {
                "prompt_tokens": 9,
                "completion_tokens": 7,
                "total_tokens": 16,
                "cached_tokens": 0,
            },
            "timings": {"queue_ms": 1.25, "ttft_ms": 20.0, "tpot_ms": None, "e2e_ms": 61.7},
        },
    ),
    "error": (
        ErrorReply(
            request_id="r1",
            attempt=None,
            error=Fault(429, "full").body(),
            retry_after_ms=250,
            queue_depth=9,
            last_seq=None,
        ),
        {
            "attempt": None,
            "error": {
                "type": "overloaded_error",
                "code": 429,
                "message": "full",
                "param": None,
                "retryable": True,
            },
            "retry_after_ms": 250,
            "queue_depth": 9,
            "last_seq": None,
        },
    ),
}


@pytest.mark.parametrize("kind", REPLIES)
def test_a_reply_is_compact_and_whole(kind: str) -> None:
    reply, fields = REPLIES[kind]
    payload = reply.encode()
    told = {"v": 1, "type": kind, "request_id": "r1", **fields}
    assert json.loads(payload) == told
    assert payload == json.dumps(told, separators=(",", ":"), ensure_ascii=False).encode()
    assert parse_reply(payload) == reply
    # A later server may add to it.
    assert parse_reply(payload[:-1] + b',"more":{"a":[1]}}') == reply


def test_a_delta_has_its_text() -> None:
    reply = parse_reply(REPLIES["delta"][0].encode())
    assert isinstance(reply, DeltaReply)
    assert reply.text == "é\n"


NO_REPLY = [
    b"",
    b"{}",
    b"[]",
    b'{"type":"novel"}',
    b'{"v":2,"type":"accepted"}',
    b"\xff",
    b"[" * 999,
]


@pytest.mark.parametrize("payload", NO_REPLY)
def test_what_is_no_reply_is_a_value_error(payload: bytes) -> None:
    with pytest.raises(ValueError, match="validation error"):
        parse_reply(payload)


NONE = Percentiles(p50=None, p99=None)
CARD = NodeCard(
    node="box",
    pool="default",
    boot_id="b",
    state="online",
    model=ModelInfo(name="builtin", max_model_len=2048, dtype="float32", device="cpu"),
    limits=Limits(max_request_bytes=262_144, max_requests=9, user_requests=2, user_per_minute=0),
    version="0.1.0",
    since=1.5,
)
METRICS = Metrics(
    node="box",
    boot_id="b",
    time=2.5,
    running=None,
    waiting=0,
    kv_used=1,
    kv_total=2,
    tokens_per_second=None,
    ttft_ms=NONE,
    tpot_ms=Percentiles(p50=1.0, p99=2.0),
    mqtt=MqttMetrics(running=1, waiting=0, accepted=3, finished=2, rejected=0, first_token_ms=NONE),
)


@pytest.mark.parametrize("message", [CARD, METRICS], ids=["card", "metrics"])
def test_what_a_node_tells_is_read_back(message: NodeCard | Metrics) -> None:
    payload = message.encode()
    assert json.loads(payload)["v"] == 1
    assert type(message).model_validate_json(payload) == message
    assert b"null" in message.encode() or message is CARD


def test_no_message_of_ours_has_a_number_that_json_has_not() -> None:
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValidationError, match="finite"):
            Percentiles(p50=value, p99=None)
        with pytest.raises(ValidationError, match="finite"):
            CARD.model_validate(CARD.model_dump() | {"since": value})


def test_every_message_is_in_the_schema() -> None:
    schema = json_schema()
    assert {"ChatRequest", "ControlMessage", "NodeCard", "Metrics"} <= set(schema["$defs"])
    messages: list[BaseModel] = [CARD, METRICS, *(reply for reply, _ in REPLIES.values())]
    for message in messages:
        part = schema["$defs"][type(message).__name__]
        # Of what the server sends, everything is always there.
        assert part["required"] == list(type(message).model_fields)
    request = schema["$defs"]["ChatRequest"]
    assert request["required"] == ["messages"]
    assert request["additionalProperties"] is False
