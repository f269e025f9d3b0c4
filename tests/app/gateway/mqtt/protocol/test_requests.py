"""Requests that are taken: their fields, and what they are to the engine."""

from __future__ import annotations

import json

from app.gateway.mqtt.protocol.parsing import parse_request
from app.gateway.mqtt.protocol.requests import ChatRequest
from engine.api.sampling import SAMPLING_SPECS, SamplingParams
from tests.support.chat_requests import CALLER, FULL, parse

PARAMETERS = [name for name, spec in SAMPLING_SPECS.items() if spec.names.get("mqtt") == name]


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


def test_the_last_of_two_equal_keys_counts() -> None:
    payload = b'{"seed": "x", "messages": [{"role": "user", "content": "hi"}], "seed": 3}'
    assert parse_request(payload, CALLER).seed == 3
