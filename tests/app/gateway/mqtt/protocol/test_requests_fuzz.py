"""Whatever comes as a request is a ChatRequest or a Fault that says why it is none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.gateway.faults import MAX_MESSAGE, Fault
from app.gateway.mqtt.protocol.parsing import parse_request
from app.gateway.mqtt.protocol.replies import ErrorBody
from app.gateway.mqtt.protocol.requests import ChatRequest
from app.gateway.mqtt.protocol.topics import Caller
from engine.api.sampling import SamplingParams

CALLER = Caller("default", "alice", "phone", "r1")

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
CHAT = st.tuples(
    st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["system", "user", "assistant"]), "content": TEXT}
        ),
        max_size=3,
    ),
    TEXT,
).map(lambda chat: [*chat[0], {"role": "user", "content": chat[1]}])
NEW = st.tuples(st.booleans(), TEXT).map(
    lambda new: (
        [{"role": "system", "content": "s"}] * new[0] + [{"role": "user", "content": new[1]}]
    )
)


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def number(low: float, high: float) -> st.SearchStrategy[float]:
    # No -0.0, which equals 0.0 and is written otherwise.
    return st.floats(low, high, exclude_min=low == 0.0).map(lambda x: x + 0.0)


FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "v": st.just(1),
    "request_id": st.just("r1"),
    "model": TEXT,
    "max_tokens": st.integers(10, 2**31 - 1),
    "temperature": number(0.0, 100.0),
    "top_p": number(0.0, 1.0),
    "top_k": st.integers(0, 2**31 - 1),
    "min_p": number(0.0, 1.0),
    "repetition_penalty": number(0.0, 100.0),
    "presence_penalty": number(-2.0, 2.0),
    "frequency_penalty": number(-2.0, 2.0),
    "logit_bias": st.dictionaries(
        st.integers(0, 10**6).map(str), number(-100.0, 100.0), max_size=3
    ),
    "seed": st.integers(0, 2**64 - 1),
    "min_tokens": st.integers(0, 10),
    "stop": TEXT.filter(bool) | st.lists(TEXT.filter(bool), max_size=3),
    "chat_template_kwargs": st.dictionaries(st.sampled_from(["a", "b"]), TEXT | st.booleans()),
    "structure": st.just({"json_object": True})
    | st.builds(lambda text: {"regex": text}, TEXT.filter(bool)),
    "tools": st.lists(TEXT.filter(bool).map(tool), max_size=2),
    "logprobs": st.booleans(),
    "prompt_logprobs": st.integers(0, 20),
    "stop_token_ids": st.lists(st.integers(0, 2**31 - 1), max_size=3),
    "ignore_eos": st.booleans(),
    "stream": st.booleans(),
    "accepted": st.booleans(),
    "delta_qos": st.sampled_from([0, 1]),
    "deadline_ms": st.integers(1, 86_400_000),
    "priority": st.integers(-1_000_000, 1_000_000),
    "sent_at": number(0.0, 1e12),
}
VALID = st.fixed_dictionaries({"messages": CHAT}, optional=FIELDS) | st.fixed_dictionaries(
    {"messages": NEW, "session_id": st.text("aé1.-", min_size=1, max_size=9)}, optional=FIELDS
)


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**400), 10**400)
    | st.floats()
    | st.text(st.characters())  # with lone surrogates
    | st.builds(nested, st.integers(0, 300)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from([*FIELDS, "session_id", "messages"]) | st.text(st.characters())
HOSTILE = [
    b"",
    b"{" * 10_000,
    b'{"messages":' * 10_000 + b"1" + b"}" * 10_000,
    b'{"messages":[{"role":"user","content":"x"}],"seed":%s}' % (b"9" * 100_000),
    b'{"messages":[{"role":"user","content":"x"}],"top_p":-%s}' % (b"9" * 4_000),
    b'{"messages":[{"role":"user","content":"\\ud83d"}]}',
    b'{"messages":NaN,"seed":-Infinity}',
    b"\xef\xbb\xbf{}",
]
PUNCTUATION = st.sampled_from([b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\u", b"\xff", b"\0"])


def dump(value: Any) -> bytes:
    return json.dumps(value).encode()


def splice(payload: bytes, place: int, cut: int, put: bytes) -> bytes:
    start = place % (len(payload) + 1)
    return payload[:start] + put + payload[start + cut :]


def put_deep(request: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A field of the last message replaced or added."""
    *before, last = request["messages"]
    return request | {"messages": [*before, last | {key: value}]}


PAYLOADS = (
    st.sampled_from(HOSTILE)
    | st.binary(max_size=64)
    | ANY.map(dump)
    | VALID.map(dump)
    | st.builds(lambda request, name, value: dump(request | {name: value}), VALID, NAMES, ANY)
    | st.builds(
        lambda request, key, value: dump(put_deep(request, key, value)),
        VALID,
        st.sampled_from(["role", "content"]) | st.text(max_size=3),
        ANY,
    )
    | st.builds(
        splice,
        VALID.map(dump),
        st.integers(0, 2_000),
        st.integers(0, 8),
        PUNCTUATION | st.binary(max_size=4),
    )
)


def check(payload: bytes) -> None:
    try:
        request = parse_request(payload, CALLER)
    except Fault as fault:
        check_fault(fault)
    else:
        check_request(request)


def check_fault(fault: Fault) -> None:
    assert fault.code == 400
    assert 0 < len(fault.message) <= MAX_MESSAGE
    assert fault.message.isprintable()
    assert fault.param is None or fault.param.isprintable()
    assert len(fault.param or "") < 200
    # It reaches its owner.
    ErrorBody.of(fault).model_dump_json().encode()


def check_request(request: ChatRequest) -> None:
    again = parse_request(request.encode(), CALLER)
    assert again == request
    assert again.digest() == request.digest()
    SamplingParams().override(request.sampling())
    assert request.messages[-1].role == "user"
    "".join(turn.content for turn in request.messages).encode()


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(PAYLOADS)
def test_whatever_comes_is_read_or_refused(payload: bytes) -> None:
    check(payload)


@pytest.mark.long
@settings(
    max_examples=100_000,
    derandomize=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(PAYLOADS)
def test_whatever_comes_is_read_or_refused_at_length(payload: bytes) -> None:
    check(payload)


@pytest.mark.parametrize("payload", HOSTILE, ids=range(len(HOSTILE)))
def test_the_hostile_is_refused(payload: bytes) -> None:
    with pytest.raises(Fault):
        parse_request(payload, CALLER)
    check(payload)


@settings(max_examples=50)
@given(VALID)
def test_the_valid_is_taken(fields: dict[str, Any]) -> None:
    request = parse_request(dump(fields), CALLER)
    told = json.loads(request.encode())
    assert {name: told[name] for name in fields} == fields
    check(dump(fields))


@settings(max_examples=100)
@given(VALID, st.data())
def test_digests_are_equal_where_requests_are(fields: dict[str, Any], data: st.DataObject) -> None:
    request = parse_request(dump(fields), CALLER)
    order = data.draw(st.permutations(list(fields)))
    again = {name: fields[name] for name in order} | {"sent_at": data.draw(FIELDS["sent_at"])}
    payload = json.dumps(again, indent=data.draw(st.sampled_from([None, 0, 3])))
    assert parse_request(payload.encode(), CALLER).digest() == request.digest()

    name = data.draw(st.sampled_from([*FIELDS]))
    other = parse_request(dump(fields | {name: data.draw(FIELDS[name])}), CALLER)
    assert (other.digest() == request.digest()) == (essence(other) == essence(request))


def essence(request: ChatRequest) -> dict[str, Any]:
    return request.model_dump(exclude={"sent_at"})
