"""Log-probabilities over MQTT: those of the built-in model, as chat over HTTP has them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.gateway.mqtt import exchange
from app.gateway.mqtt.gateway import MqttGateway
from app.gateway.mqtt.settings import MqttSettings
from app.gateway.mqtt.transport.address import BrokerAddress
from engine.serving.host import EngineHost
from tests.support.brokers import Mosquitto
from tests.support.driving import TIMEOUT
from tests.support.mqtt_asking import status
from tests.support.mqtt_peer import Peer

MESSAGES = [{"role": "user", "content": "Tell me a fact. 🙂"}]
ASKED = {"temperature": 0, "max_tokens": 6, "logprobs": True, "top_logprobs": 3}


@pytest.fixture
def client(builtin: EngineHost, broker: Mosquitto, alice: Peer, tmp_path: Path) -> Iterator[Peer]:
    """A client of a gateway that is connected."""
    address = f"mqtt://127.0.0.1:{broker.port}"
    settings = MqttSettings(url=address, node="box", delta_ms=0, drain_seconds=0.0)
    gateway = MqttGateway(
        builtin, settings, BrokerAddress.parse(address), tmp_path / "batchdeck.db"
    )
    gateway.start()
    assert status(alice)["state"] == "online"
    yield alice
    gateway.stop(0.0)


def over_http(url: str, **fields: Any) -> dict[str, Any]:
    answer = httpx2.post(
        f"{url}/v1/chat/completions",
        json={"messages": MESSAGES, **fields},
        timeout=TIMEOUT,
        trust_env=False,
    )
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def test_those_of_a_reply_and_of_its_prompt_are_those_of_http(
    builtin_url: str, client: Peer
) -> None:
    asked = ASKED | {"prompt_logprobs": 2}
    expected = over_http(builtin_url, **asked)
    client.ask("1", messages=MESSAGES, **asked)
    final = client.end("1")
    assert final["type"] == "final", final
    content = final["logprobs"]["content"]
    assert len(content) == final["usage"]["completion_tokens"]
    assert near(content, expected["choices"][0]["logprobs"]["content"])
    assert len(final["prompt_logprobs"]) == final["usage"]["prompt_tokens"]
    assert final["prompt_logprobs"][0] is None
    assert near(final["prompt_logprobs"], expected["prompt_logprobs"])
    deltas = [one["choices"][0] for one in client.replies("1") if one["type"] == "delta"]
    streamed = [
        token for one in deltas for token in (one["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == content


def test_a_request_without_them_gets_none(client: Peer) -> None:
    client.ask("1", messages=MESSAGES, max_tokens=3)
    final = client.end("1")
    assert (final["logprobs"], final["prompt_logprobs"]) == (None, None)
    deltas = [one["choices"][0] for one in client.replies("1") if one["type"] == "delta"]
    assert {one["logprobs"] for one in deltas} == {None}


def test_a_prompt_alone_is_told(client: Peer) -> None:
    client.ask("1", messages=MESSAGES, max_tokens=0, prompt_logprobs=0)
    final = client.end("1")
    assert (final["text"], final["finish_reason"]) == ("", "length")
    assert all(len(place) == 1 for place in final["prompt_logprobs"][1:])


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"logprobs": True, "top_logprobs": 20, "max_tokens": 40}, "logprobs"),
        ({"prompt_logprobs": 20, "max_tokens": 40}, "prompt_logprobs"),
        ({"prompt_logprobs": 20, "max_tokens": 0}, "prompt_logprobs"),
    ],
)
def test_more_than_a_payload_holds_end_the_request_with_an_error(
    client: Peer, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], name: str
) -> None:
    monkeypatch.setattr(exchange, "MAX_ALTERNATIVES", 60)
    client.ask("1", messages=MESSAGES, ignore_eos=True, **fields)
    end = client.end("1")
    assert end["type"] == "error", json.dumps(end)
    error = end["error"]
    assert (error["code"], error["param"], error["retryable"]) == (400, name, False)
    assert error["message"].startswith(f"{name} of ")
    assert "at most 60 are allowed" in error["message"]
    client.ask("2", messages=MESSAGES, max_tokens=2)
    assert client.end("2")["type"] == "final"


def test_a_token_id_ends_a_reply_and_the_models_own_end_does_not(client: Peer) -> None:
    asked: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_tokens": 40}
    client.ask("1", messages=MESSAGES, **asked)
    first = client.end("1")
    assert (first["usage"]["completion_tokens"], first["finish_reason"]) == (40, "length")
    client.ask("2", messages=MESSAGES, temperature=0, stop_token_ids=[*range(1024)])
    second = client.end("2")
    assert second["finish_reason"] == "stop"
    assert second["usage"]["completion_tokens"] <= 40


def near(one: Any, other: Any) -> bool:
    """Whether two pieces of JSON are equal, numbers nearly: batches round otherwise."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(near(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(near, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) < 1e-3
    return bool(one == other)
