"""Messages of a server: replies, cards and figures, as the schema has them."""

from __future__ import annotations

import json

import pytest
from pydantic import BaseModel, ValidationError

from app.gateway.faults import TYPES, Fault
from app.gateway.mqtt.protocol.__main__ import json_schema
from app.gateway.mqtt.protocol.cards import (
    Limits,
    Metrics,
    ModelInfo,
    MqttMetrics,
    NodeCard,
    Percentiles,
)
from app.gateway.mqtt.protocol.replies import (
    Accepted,
    Choice,
    DeltaReply,
    DeltaText,
    ErrorBody,
    ErrorReply,
    Final,
    ReplyTimings,
    ReplyUsage,
    parse_reply,
)

USAGE = ReplyUsage(prompt_tokens=9, completion_tokens=7, total_tokens=16, cached_tokens=0)


TIMINGS = ReplyTimings(queue_ms=1.25, ttft_ms=20.0, tpot_ms=None, e2e_ms=61.7)


REPLIES: dict[str, Accepted | DeltaReply | Final | ErrorReply] = {
    "accepted": Accepted(request_id="r1", attempt=1, queue_depth=3, priority=0, model="builtin"),
    "delta": DeltaReply(
        request_id="r1", attempt=1, seq=0, choices=[Choice(index=0, delta=DeltaText(content="é\n"))]
    ),
    "final": Final(
        request_id="r1",
        attempt=2,
        last_seq=-1,
        text="é",
        finish_reason="length",
        model="builtin",
        usage=USAGE,
        timings=TIMINGS,
    ),
    "error": ErrorReply(
        request_id="r1",
        attempt=None,
        error=ErrorBody.of(Fault(429, "full")),
        retry_after_ms=250,
        queue_depth=9,
        last_seq=None,
    ),
}


@pytest.mark.parametrize("kind", REPLIES)
def test_a_reply_is_compact_and_whole(kind: str) -> None:
    reply = REPLIES[kind]
    payload = reply.encode()
    fields = json.loads(payload)
    assert (fields["v"], fields["type"], fields["request_id"]) == (1, kind, "r1")
    assert list(fields) == list(type(reply).model_fields)
    assert payload == json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    assert parse_reply(payload) == reply
    # A later server may add to it.
    assert parse_reply(payload[:-1] + b',"more":{"a":[1]}}') == reply


def test_a_delta_has_its_text() -> None:
    reply = parse_reply(REPLIES["delta"].encode())
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
    version="0.2.0",
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


def test_the_card_of_an_earlier_version_says_nothing_of_quantizing() -> None:
    card = json.loads(CARD.encode())
    del card["model"]["quantize"]
    assert NodeCard.model_validate_json(json.dumps(card)) == CARD


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
    messages: list[BaseModel] = [CARD, METRICS, *REPLIES.values()]
    for message in messages:
        part = schema["$defs"][type(message).__name__]
        # Of what the server sends, everything is always there.
        assert part["required"] == list(type(message).model_fields)
    request = schema["$defs"]["ChatRequest"]
    assert request["required"] == ["messages"]
    assert request["additionalProperties"] is False


@pytest.mark.parametrize("code", TYPES)
def test_it_is_told_in_the_shape_that_clients_know(code: int) -> None:
    retryable = code in (429, 500, 503)
    body = json.loads(ErrorBody.of(Fault(code, "no", "top_p")).model_dump_json())
    assert body == {
        "type": TYPES[code],
        "code": code,
        "message": "no",
        "param": "top_p",
        "retryable": retryable,
    }
    other = ErrorBody.of(Fault(code, "no", retryable=not retryable))
    assert (other.retryable, other.param) == (not retryable, None)
