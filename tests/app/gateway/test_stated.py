"""Sampling parameters are declared once: each interface has the fields that they name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from app.gateway.faults import Fault
from app.gateway.http.protocol.chat import ChatCompletionRequest
from app.gateway.http.protocol.completions import CompletionRequest
from app.gateway.http.protocol.messages import MessagesRequest
from app.gateway.http.protocol.payload import Payload, read
from app.gateway.http.protocol.responses import ResponsesRequest
from app.gateway.mqtt.protocol.parsing import parse_request
from app.gateway.mqtt.protocol.requests import ChatRequest
from engine.api.errors import EngineError
from engine.api.sampling import SAMPLING_SPECS, SamplingParams
from engine.api.sampling_spec import Interface, NumberRange
from tests.support.chat_requests import CALLER, HI

MODELS: dict[Interface, type[BaseModel]] = {
    "chat": ChatCompletionRequest,
    "text": CompletionRequest,
    "responses": ResponsesRequest,
    "messages": MessagesRequest,
    "mqtt": ChatRequest,
}
LEAST: dict[Interface, dict[str, Any]] = {
    "chat": {"messages": HI},
    "text": {"prompt": "hi"},
    "responses": {"input": "hi"},
    "messages": {"messages": HI, "max_tokens": 9},
    "mqtt": {"messages": HI},
}
# Fields with a parameter's name that mean another thing, or that lead to several parameters.
OTHERS = {
    ("chat", "logprobs"),
    ("mqtt", "logprobs"),
    ("responses", "tools"),
    ("messages", "tools"),
}
NUMBERS: dict[str, NumberRange] = {
    name: spec.allowed
    for name, spec in SAMPLING_SPECS.items()
    if isinstance(spec.allowed, NumberRange)
}
FIELDS = [
    (interface, name, field)
    for name in NUMBERS
    for interface, field in SAMPLING_SPECS[name].names.items()
]


def sampling(interface: Interface, **stated: Any) -> dict[str, Any]:
    """The parameters that a request states.

    Raises:
        Fault: it is refused.
    """
    if stated.keys() & {"top_logprobs"}:
        stated["logprobs"] = True
    payload = json.dumps(LEAST[interface] | stated).encode()
    try:
        if interface == "mqtt":
            return parse_request(payload, CALLER).sampling()
        kind: type[Payload] = MODELS[interface]  # type: ignore[assignment]
        return read(kind, payload).sampling()  # type: ignore[attr-defined]
    except EngineError as error:
        raise Fault.of(error.info()) from None


@pytest.mark.parametrize("interface", MODELS)
def test_a_request_has_the_fields_that_parameters_declare(interface: Interface) -> None:
    declared = {
        spec.names[interface] for spec in SAMPLING_SPECS.values() if interface in spec.names
    }
    fields = {*MODELS[interface].model_fields}
    assert declared <= fields
    same = {(interface, name) for name in fields & SAMPLING_SPECS.keys() - declared}
    assert same == {one for one in OTHERS if one[0] == interface}


@pytest.mark.parametrize(("interface", "name", "field"), FIELDS)
def test_a_number_is_taken_within_its_range_alone(
    interface: Interface, name: str, field: str
) -> None:
    allowed = NUMBERS[name]
    top = sampling(interface, **{field: allowed.high})
    assert top[name] == allowed.high
    for value in (allowed.high + 2048, allowed.low - 2048, "x", True):
        with pytest.raises(Fault) as caught:
            sampling(interface, **{field: value})
        fault = caught.value
        assert (fault.code, fault.param, fault.retryable) == (400, field, False)
        assert fault.message.startswith(f"{field} is ")
        assert f"; it must be {allowed}" in fault.message


@pytest.mark.parametrize(("interface", "name", "field"), FIELDS)
def test_minus_one_stands_for_the_default_where_it_is_declared(
    interface: Interface, name: str, field: str
) -> None:
    default = SAMPLING_SPECS[name].default
    if NUMBERS[name].of_minus_one and (interface, name) != ("messages", "max_tokens"):
        assert sampling(interface, **{field: -1}).get(name) == default
    elif NUMBERS[name].low >= 0:
        with pytest.raises(Fault, match=f"{field} is -1"):
            sampling(interface, **{field: -1})


def test_a_spec_says_what_the_class_has() -> None:
    plain = SamplingParams()
    assert {name: spec.default for name, spec in SAMPLING_SPECS.items()} == {
        name: getattr(plain, name) for name in SamplingParams.__slots__
    }
    assert all(spec.meaning and spec.names for spec in SAMPLING_SPECS.values())
