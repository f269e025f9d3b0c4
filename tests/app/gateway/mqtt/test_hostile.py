"""Messages that no honest client sends: refused or dropped, and nobody else notices."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.gateway.mqtt.transport.embedded import EmbeddedBroker
from app.gateway.tally import TOPIC_LENGTH
from tests.support.brokers import Mosquitto
from tests.support.mqtt_asking import NODE
from tests.support.mqtt_peer import Peer, peer
from tests.support.mqtt_serving import Serving, serving
from tests.support.scripted_engine import ScriptedEngine

TURN = b'{"role":"user","content":"hello"}'
GOOD = b'{"messages":[' + TURN + b"]}"
KNOBS = b'{"set": {"paused": true}}'
DEEP = b'{"a":' * 10_000 + b"1" + b"}" * 10_000

PAYLOADS = {
    "empty": b"",
    "utf-8": b'{"messages":[{"role":"user","content":"\xff\xfe"}]}',
    "surrogate": GOOD.replace(b"hello", b"\\ud800"),
    "nan": GOOD[:-1] + b',"temperature":NaN}',
    "long-number": GOOD[:-1] + b',"seed":' + b"9" * 5000 + b"}",
    "deep": DEEP,
    "null": b"null",
    "number-for-content": b'{"messages":[{"role":"user","content":1}]}',
    "unknown-field": GOOD[:-1] + b',"unknown":1}',
    "deadline": GOOD[:-1] + b',"deadline_ms":0}',
    "session": GOOD[:-1] + b',"session_id":"../.."}',
    "blank-question": GOOD.replace(b"hello", b" \\n "),
}
# They name no request: nothing could be answered.
TOPICS = (
    "llm/v1/default/req/a b/phone/1",
    "llm/v1/default/req/alice/phone/" + "x" * 129,
    "llm/v1/default/req/alice/phone/" + "x" * 60_000,
    "llm/v1/default/req/alice/pho\u200bne/1",
    "llm/v1/default/req//phone/1",
    "llm/v1/default/req/alice/phone/",
)


def undisturbed(served: Serving, neighbour: Peer, name: str) -> list[dict[str, Any]]:
    """A neighbour's messages without the request's name, the times and the cuts of the text."""
    served.run(lambda: neighbour.ends(name))
    replies = neighbour.replies(name)
    assert text_of(replies) == replies[-1]["text"]
    for reply in replies:
        for field in ("timings", "request_id", "last_seq"):
            reply.pop(field, None)
    return [reply for reply in replies if reply["type"] != "delta"]


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_what_is_no_request_is_refused(broker: Mosquitto, tmp_path: Path, protocol: str) -> None:
    refuse_all(broker.port, tmp_path, protocol)


def test_amqtt_lets_no_more_through(amqtt: EmbeddedBroker, tmp_path: Path) -> None:
    refuse_all(int(amqtt.url.rpartition(":")[2]), tmp_path, "3.1.1")


def refuse_all(port: int, tmp_path: Path, protocol: str) -> None:
    engine = ScriptedEngine(lambda _: "the same words for everybody who asks for them")
    with (
        serving(port, tmp_path, engine=engine) as served,
        peer(port, user="mallory", client="m", protocol=protocol) as mallory,
        peer(port, client="neighbour", protocol=protocol) as neighbour,
    ):
        neighbour.ask("before")
        served.accepted(1)
        expected = undisturbed(served, neighbour, "before")

        neighbour.ask("during")
        served.accepted(2)
        engine.advance(2)
        for name, payload in PAYLOADS.items():
            mallory.publish(mallory.topic("req", name), payload)
        for topic in TOPICS:
            mallory.publish(topic, GOOD)
        for name in PAYLOADS:
            error = mallory.end(name)["error"]
            assert (error["code"], error["type"]) == (400, "invalid_request_error"), name
            assert not error["retryable"]
            assert 10 < len(error["message"]) <= 500
            assert "\n" not in error["message"]
            assert len(mallory.replies(name)) == 1
        assert len(engine.submissions) == 2
        assert undisturbed(served, neighbour, "during") == expected
        served.check_idle()


def test_a_long_topic_is_cut_where_it_is_shown(
    broker: Mosquitto, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(broker.port, tmp_path) as served, peer(broker.port) as alice:
        alice.publish(TOPICS[2], GOOD)
        served.until(lambda: served.gateway.view().bad)
        (bad,) = served.gateway.view().bad
    assert bad.topic == TOPICS[2][:TOPIC_LENGTH]
    (line,) = (r.getMessage() for r in caplog.records if "names no request" in r.getMessage())
    assert len(line) < 2 * TOPIC_LENGTH


def test_a_retained_request_is_dropped_with_a_log_line(
    broker: Mosquitto, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with peer(broker.port) as alice:
        topics = [alice.topic("req", "kept"), alice.topic("cancel", "*"), f"{NODE}/knobs/set"]
        try:
            for topic in topics:
                alice.publish(topic, KNOBS if topic.endswith("set") else GOOD, retain=True)
            with serving(broker.port, tmp_path) as served:
                alice.ask("1")
                served.accepted(1)
                alice.publish(topics[0], GOOD, retain=True)
                served.until(lambda: len(served.gateway.view().bad) >= 3)
                served.run(lambda: alice.ends("1"))
                assert alice.ends("1")[0]["type"] == "final"
                assert not alice.replies("kept")
                assert len(served.engine.submissions) == 1
                assert not served.engine.snapshot().knob_history  # type: ignore[union-attr]
            dropped = [r.getMessage() for r in caplog.records if "retained" in r.getMessage()]
            assert len(dropped) == 3
            assert all("\n" not in line for line in dropped)
        finally:
            for topic in topics:
                alice.publish(topic, b"", retain=True)


RESPONSE_TOPICS = {
    "deep": "a/" * 300,
    "empty-levels": "/" * 30,
    "long": "x" * 60_000,
    "control": "a\x01b",
    "no-character": "a\uffff",
    "dollar": "$SYS/x",
    "empty": "",
}


def test_no_response_topic_costs_the_connection(broker: Mosquitto, tmp_path: Path) -> None:
    """A broker may pass a text as a property and end a connection for it as a topic."""
    with serving(broker.port, tmp_path) as served:
        for name, ending in RESPONSE_TOPICS.items():
            mallory = Peer(broker.port, user="mallory", client="m")
            topic = f"llm/v1/default/rep/mallory/m/{ending}"
            body = json.dumps({"messages": [{"role": "user", "content": "hello"}]})
            mallory.publish(
                mallory.topic("req", name),
                body,
                response_topic=topic,
                correlation=b"x" * 1000,
                wait=False,
            )
            with peer(broker.port, client="neighbour") as neighbour:
                neighbour.ask(name)
                served.run(lambda name=name, n=neighbour: n.ends(name))
                neighbour.settle()
            assert all(end["error"]["code"] == 403 for end in mallory.ends(name))
            mallory.close()
        assert served.gateway._link.reconnects == 0
        served.run(lambda: not len(served.gateway._exchanges))
        served.check_idle()


@pytest.fixture
def traced() -> Iterator[Callable[[], int]]:
    """Bytes that Python's objects take now."""

    def current() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    yield current
    tracemalloc.stop()


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_ten_megabytes_are_refused_and_leave_nothing(
    broker: Mosquitto, tmp_path: Path, protocol: str, traced: Callable[[], int]
) -> None:
    large = b" " * 10_000_000
    with (
        serving(broker.port, tmp_path, protocol=protocol) as served,
        peer(broker.port) as alice,
    ):
        alice.publish(alice.topic("req", "warm"), large)
        alice.ask("between")
        served.run(lambda: alice.ends("between"))
        before = traced()
        for n in range(5):
            alice.publish(alice.topic("req", f"large-{n}"), large)
        alice.publish(alice.topic("req", "medium"), b" " * 300_000)
        assert alice.end("medium")["error"]["code"] == 413
        for n in range(5):
            # MQTT 5's broker knows what we take and does not send it, nor tell anybody.
            if protocol == "3.1.1":
                assert alice.end(f"large-{n}")["error"]["code"] == 413
            else:
                assert not alice.replies(f"large-{n}")
        assert served.gateway._link.reconnects == 0
        alice.settle()
        served.until(lambda: traced() - before < 1_000_000)
        assert len(served.engine.submissions) == 1


def text_of(replies: list[dict[str, Any]]) -> str:
    return "".join(r["choices"][0]["delta"]["content"] for r in replies if r["type"] == "delta")
