"""Replies as they come: accepted, deltas, the end, and where they are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.brokers import Mosquitto
from tests.support.mqtt_asking import finish
from tests.support.mqtt_peer import Peer, peer
from tests.support.mqtt_serving import Serving, serving
from tests.support.scripted_engine import ScriptedEngine


def test_a_request_is_accepted_streamed_and_ended(served: Serving, alice: Peer) -> None:
    alice.ask("1", "tell me all of it", max_tokens=50)
    served.accepted(1)
    for number in range(1, 4):
        served.engine.advance()
        alice.wait(lambda number=number: len(alice.replies("1")) > number)
    final = finish(served, alice, "1")

    replies = alice.replies("1")
    deltas = [r for r in replies if r["type"] == "delta"]
    assert [r["type"] for r in replies] == ["accepted", *["delta"] * len(deltas), "final"]
    assert all(r["v"] == 1 and r["request_id"] == "1" and r["attempt"] == 1 for r in replies)
    assert [d["seq"] for d in deltas] == list(range(len(deltas)))
    assert "".join(d["choices"][0]["delta"]["content"] for d in deltas) == final["text"]
    assert final["text"] == "You said: tell me all of it"
    assert final["finish_reason"] == "stop"
    assert final["last_seq"] == len(deltas) - 1 > 2
    usage = final["usage"]
    assert usage["completion_tokens"] == 7
    assert usage["total_tokens"] == usage["prompt_tokens"] + 7
    assert final["timings"]["ttft_ms"] > 0 < final["timings"]["tpot_ms"]
    submission = served.engine.submissions[0]
    assert submission.origin.source == "mqtt"
    assert submission.origin.user == "alice"
    assert submission.sampling == {"max_tokens": 50}
    assert submission.chat_defaults


def test_without_stream_and_accepted_one_message_comes(served: Serving, alice: Peer) -> None:
    alice.ask("1", stream=False, accepted=False)
    served.accepted(1)
    finish(served, alice, "1")
    assert [r["type"] for r in alice.replies("1")] == ["final"]
    assert alice.replies("1")[0]["last_seq"] == -1


def test_deltas_are_coalesced_by_time(broker: Mosquitto, alice: Peer, tmp_path: Path) -> None:
    words = " ".join(map(str, range(200)))
    engine = ScriptedEngine(lambda submission: words)
    with serving(broker.port, tmp_path, engine=engine, delta_ms=10_000) as served:
        alice.ask("1")
        served.accepted(1)
        served.engine.advance()
        alice.wait(lambda: len(alice.replies("1")) == 2)
        final = finish(served, alice, "1")
        deltas = [r for r in alice.replies("1") if r["type"] == "delta"]
        # The first at once, and what there was at the end.
        assert len(deltas) == 2
        assert "".join(d["choices"][0]["delta"]["content"] for d in deltas) == final["text"]


def test_a_response_topic_below_ones_own_branch_is_used(served: Serving, alice: Peer) -> None:
    mine = "llm/v1/default/rep/alice/phone/all"
    alice.ask("1", mqtt_response_topic=mine, mqtt_correlation=b"\x00\xff")
    served.accepted(1)
    served.run(lambda: any(b"final" in payload for _, payload, _ in alice.messages))
    assert {topic for topic, _, _ in alice.messages} == {mine}
    assert {getattr(p, "CorrelationData", None) for p in alice.properties} == {b"\x00\xff"}


def test_clients_of_3_1_1_get_the_same(served: Serving, broker: Mosquitto) -> None:
    with peer(broker.port, client="old", protocol="3.1.1") as old:
        old.ask("1", "hello", delta_qos=1)
        served.accepted(1)
        assert finish(served, old, "1")["text"] == "You said: hello"


def test_who_asks_again_is_told_where_it_listens_now(served: Serving, alice: Peer) -> None:
    branch = "llm/v1/default/rep/alice/phone"
    alice.ask("1", mqtt_response_topic=f"{branch}/before", mqtt_correlation=b"1")
    served.accepted(1)
    alice.ask("1", mqtt_response_topic=f"{branch}/after", mqtt_correlation=b"2")
    alice.wait(lambda: len(alice.messages) == 2)
    served.run(lambda: any(b"final" in payload for _, payload, _ in alice.messages))
    assert {topic for topic, _, _ in alice.messages[1:]} == {f"{branch}/after"}
    told = {getattr(p, "CorrelationData", None) for p in alice.properties[1:]}
    assert told == {b"2"}


def test_thinking_has_fields_of_its_own(broker: Mosquitto, alice: Peer, tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda _: "<think>They greet me.</think>Hello you")
    with serving(broker.port, tmp_path, engine=engine) as served:
        arguments = {"enable_thinking": True}
        alice.ask("1", "hi", session_id="s", chat_template_kwargs=arguments)
        served.accepted(1)
        final = finish(served, alice, "1")
        assert engine.submissions[0].sampling == {"chat_template_kwargs": arguments}

        deltas = [r for r in alice.replies("1") if r["type"] == "delta"]
        told = [d["choices"][0]["delta"] for d in deltas]
        assert "".join(d["reasoning_content"] or "" for d in told) == "They greet me."
        assert "".join(d["content"] for d in told) == "Hello you"
        assert (final["text"], final["reasoning_content"]) == ("Hello you", "They greet me.")
        assert 0 < final["usage"]["reasoning_tokens"] < final["usage"]["completion_tokens"]

        # The next turn of the session tells the chat template of it.
        alice.ask("2", "and", session_id="s")
        served.accepted(2)
        messages = engine.submissions[1].messages
        assert [(m.content, m.thinking) for m in messages[:2]] == [
            ("hi", ""),
            ("Hello you", "They greet me."),
        ]


def test_each_reply_has_a_line_in_the_log(
    served: Serving, alice: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "app.gateway.exchange")
    alice.ask("1", "tell me all of it")
    served.accepted(1)
    final = finish(served, alice, "1")
    (facts,) = (one.__dict__["facts"] for one in caplog.records if "facts" in one.__dict__)
    assert (facts["user"], facts["endpoint"], facts["end"]) == ("alice", "mqtt", "stop")
    assert facts["id"] == served.engine.submissions[0].request_id
    assert facts["output_tokens"] == final["usage"]["completion_tokens"]
    assert facts["ttft_s"] * 1000 == pytest.approx(final["timings"]["ttft_ms"], abs=0.01)
