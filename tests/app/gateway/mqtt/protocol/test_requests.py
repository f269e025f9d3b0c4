"""Requests that are taken: their fields, and what they are to the engine."""

from __future__ import annotations

import json

import pytest

from app.gateway.mqtt.protocol.parsing import parse_request
from app.gateway.mqtt.protocol.requests import ChatRequest
from app.gateway.mqtt.protocol.turns import ChatTurn
from engine.api.sampling import SAMPLING_SPECS, SamplingParams
from tests.support.chat_requests import CALLER, FULL, parse

PARAMETERS = [name for name, spec in SAMPLING_SPECS.items() if spec.names.get("mqtt") == name]


def test_messages_are_enough() -> None:
    request = parse()
    assert request == ChatRequest(messages=(ChatTurn(role="user", content="hi"),))
    assert (request.v, request.stream, request.accepted) == (1, True, True)
    assert (request.delta_qos, request.priority) == (0, 0)
    assert request.sampling() == {}


def test_every_field_is_taken() -> None:
    assert list(FULL) == list(ChatRequest.model_fields)
    request = parse(**FULL)
    told = json.loads(request.encode())
    assert told == {name: value for name, value in FULL.items() if value is not None}
    sampling = request.sampling()
    assert sampling == {
        **{name: FULL[name] for name in PARAMETERS},
        "stop": ("\n\n", "END"),
        "stop_token_ids": (7,),
        "logprobs": 3,
    }
    params = SamplingParams().override(sampling)
    assert (params.seed, params.stop) == (2**64 - 1, ("\n\n", "END"))
    assert dict(params.logit_bias) == {262: -100, 7: 1.5}


def test_one_text_stops_too() -> None:
    assert parse(stop="END").sampling() == {"stop": ("END",)}


@pytest.mark.parametrize("roles", [["user"], ["system", "user"]], ids=lambda roles: "-".join(roles))
def test_a_session_takes_what_is_new(roles: list[str]) -> None:
    messages = [{"role": role, "content": "x"} for role in roles]
    request = parse(session_id="s", messages=messages)
    assert [turn.role for turn in request.messages] == roles


def test_the_last_of_two_equal_keys_counts() -> None:
    payload = b'{"seed": "x", "messages": [{"role": "user", "content": "hi"}], "seed": 3}'
    assert parse_request(payload, CALLER).seed == 3
