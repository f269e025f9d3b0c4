"""The gateway against a real broker, an engine that is scripted and a client that is not ours."""

from __future__ import annotations

import errno
import itertools
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.gateway.mqtt import gateway, intake
from app.gateway.mqtt.protocol.requests import ChatRequest, parse_request
from app.gateway.mqtt.protocol.topics import Caller
from app.gateway.mqtt.transport import link
from engine.client import LoadRequest
from engine.knobs import Knobs
from engine.request import FinishReason
from tests.support.brokers import Mosquitto
from tests.support.mqtt_peer import Peer, peer
from tests.support.mqtt_serving import TIMEOUT, Serving, serving
from tests.support.scripted_engine import ScriptedEngine

NODE = "llm/v1/default/node/box"


@pytest.fixture
def served(broker: Mosquitto, tmp_path: Path) -> Iterator[Serving]:
    with serving(broker.port, tmp_path) as one:
        yield one


@pytest.fixture
def alice(broker: Mosquitto) -> Iterator[Peer]:
    with peer(broker.port) as one:
        yield one


def finish(served: Serving, client: Peer, request_id: str) -> dict[str, Any]:
    """Step the engine until the newest attempt has ended."""
    attempts = [r["attempt"] for r in client.replies(request_id) if r["attempt"]]
    newest = max(attempts, default=1)

    def ended() -> list[dict[str, Any]]:
        return [end for end in client.ends(request_id) if end["attempt"] == newest]

    served.run(ended)
    return ended()[-1]


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


def test_a_session_sends_only_what_is_new_and_hits_the_cache(served: Serving, alice: Peer) -> None:
    first = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "one " * 40}]
    alice.ask("1", session_id="s", messages=first)
    served.accepted(1)
    finish(served, alice, "1")
    alice.ask("2", "and now", session_id="s")
    served.accepted(2)
    final = finish(served, alice, "2")

    submission = served.engine.submissions[1]
    assert [m.role for m in submission.messages] == ["system", "user", "assistant", "user"]
    assert submission.context is not None
    assert final["usage"]["cached_tokens"] > 30


def test_a_session_is_kept_over_a_restart(broker: Mosquitto, alice: Peer, tmp_path: Path) -> None:
    with serving(broker.port, tmp_path) as served:
        alice.ask("1", "first", session_id="s")
        served.accepted(1)
        finish(served, alice, "1")
    with serving(broker.port, tmp_path) as served:
        alice.ask("2", "second", session_id="s")
        served.accepted(1)
        finish(served, alice, "2")
        told = [m.content for m in served.engine.submissions[0].messages]
        assert told == ["first", "You said: first", "second"]
        assert served.engine.submissions[0].context is not None


def test_sessions_are_their_users(served: Serving, alice: Peer, broker: Mosquitto) -> None:
    alice.ask("1", "mine", session_id="s")
    served.accepted(1)
    finish(served, alice, "1")
    with peer(broker.port, user="bob", client="tablet") as bob:
        bob.ask("1", "yours", session_id="s")
        served.accepted(2)
        assert [m.content for m in served.engine.submissions[1].messages] == ["yours"]


def test_a_session_takes_one_turn_at_a_time(served: Serving, alice: Peer) -> None:
    alice.ask("1", "first", session_id="s")
    served.accepted(1)
    alice.ask("2", "second", session_id="s")
    error = alice.end("2")
    assert error["error"]["code"] == 409
    assert error["error"]["retryable"]
    assert error["retry_after_ms"] > 0
    assert error["attempt"] is None
    finish(served, alice, "1")
    alice.ask("2", "second", session_id="s")
    served.accepted(2)


def test_another_system_message_is_refused(served: Serving, alice: Peer) -> None:
    both = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    alice.ask("1", session_id="s", messages=both)
    served.accepted(1)
    finish(served, alice, "1")
    both[0]["content"] = "be long"
    alice.ask("2", session_id="s", messages=both)
    assert alice.end("2")["error"]["code"] == 400


def test_a_running_duplicate_is_accepted_again_and_a_finished_one_told_again(
    served: Serving, alice: Peer
) -> None:
    alice.ask("1", "hello")
    served.accepted(1)
    alice.ask("1", "hello")
    alice.wait(lambda: len(alice.replies("1")) == 2)
    assert [r["type"] for r in alice.replies("1")] == ["accepted", "accepted"]
    final = finish(served, alice, "1")
    alice.ask("1", "hello")
    assert alice.end("1", 2) == final
    assert len(served.engine.submissions) == 1


def test_another_body_under_an_id_is_a_conflict(served: Serving, alice: Peer) -> None:
    alice.ask("1", "hello")
    served.accepted(1)
    alice.ask("1", "good bye")
    assert alice.end("1")["error"]["code"] == 409
    finish(served, alice, "1")
    alice.ask("1", "good bye")
    assert alice.end("1", 3)["error"]["code"] == 409
    assert len(served.engine.submissions) == 1


def test_a_retryable_failure_is_run_again_as_another_attempt(served: Serving, alice: Peer) -> None:
    alice.ask("1", "hello there", session_id="s")
    served.accepted(1)
    served.engine.advance(3)
    served.engine.break_request("default/alice/phone/1", "the step failed")
    error = alice.end("1")
    assert (error["error"]["code"], error["error"]["retryable"], error["attempt"]) == (500, True, 1)

    alice.ask("1", "hello there", session_id="s")
    served.accepted(2)
    alice.wait(lambda: alice.replies("1")[-1]["attempt"] == 2)
    finish(served, alice, "1")
    again = [r for r in alice.replies("1") if r["type"] == "delta" and r["attempt"] == 2]
    assert again[0]["seq"] == 0
    # It is asked once, not after its own failure.
    assert [m.content for m in served.engine.submissions[1].messages] == ["hello there"]


def test_an_invalid_request_is_not_run_again(served: Serving, alice: Peer) -> None:
    alice.ask("1", "word " * 2000)
    error = alice.end("1")["error"]
    assert (error["code"], error["param"], error["retryable"]) == (400, "messages", False)
    alice.ask("1", "word " * 2000)
    assert alice.end("1", 2)["error"] == error
    assert len(served.engine.submissions) == 1


def test_cancel_ends_one_and_star_all_of_a_client(
    served: Serving, alice: Peer, broker: Mosquitto
) -> None:
    with peer(broker.port, client="tablet") as other:
        for name in "123":
            alice.ask(name)
        other.ask("1")
        served.accepted(4)
        served.engine.advance(2)
        alice.cancel("2")
        error = alice.end("2")
        assert error["error"]["code"] == 499
        assert not error["error"]["retryable"]
        alice.cancel("*")
        assert alice.end("1")["error"]["code"] == alice.end("3")["error"]["code"] == 499
        assert finish(served, other, "1")["type"] == "final"


def test_an_operator_may_stop_a_request(served: Serving, alice: Peer) -> None:
    alice.ask("1")
    served.accepted(1)
    served.engine.abort("default/alice/phone/1")
    assert "operator" in alice.end("1")["error"]["message"]


def test_a_response_topic_below_ones_own_branch_is_used(served: Serving, alice: Peer) -> None:
    mine = "llm/v1/default/rep/alice/phone/all"
    alice.ask("1", mqtt_response_topic=mine, mqtt_correlation=b"\x00\xff")
    served.accepted(1)
    served.run(lambda: any(b"final" in payload for _, payload, _ in alice.messages))
    assert {topic for topic, _, _ in alice.messages} == {mine}
    assert {getattr(p, "CorrelationData", None) for p in alice.properties} == {b"\x00\xff"}


@pytest.mark.parametrize(
    "topic",
    [
        "llm/v1/default/rep/bob/phone/1",
        "llm/v1/default/rep/alice/phone",
        "somewhere",
        "llm/v1/default/rep/alice/phone/+",
    ],
)
def test_a_response_topic_elsewhere_is_refused(served: Serving, alice: Peer, topic: str) -> None:
    alice.watch("somewhere")
    try:
        alice.ask("1", mqtt_response_topic=topic)
    except ValueError:
        pytest.skip("this client refuses to say it")
    assert alice.end("1")["error"]["code"] == 403
    assert not served.engine.submissions


def test_requests_are_refused_that_can_not_be_served(served: Serving, alice: Peer) -> None:
    alice.ask("model", model="another")
    assert alice.end("model")["error"]["code"] == 404
    alice.publish(alice.topic("req", "json"), b"{")
    assert alice.end("json")["error"]["code"] == 400
    alice.publish(alice.topic("req", "large"), b" " * 300_000)
    assert alice.end("large")["error"]["code"] == 413
    served.engine.set_knobs({"draining": True}, "test")
    served.until(lambda: status(alice)["state"] == "draining")
    alice.ask("drain")
    error = alice.end("drain")["error"]
    assert (error["code"], error["retryable"]) == (503, True)
    view = served.gateway.view
    served.until(lambda: sum(r.count for r in view().rejected) == 4)
    assert {r.code for r in view().rejected} == {400, 404, 413, 503}
    assert [bad.code for bad in view().bad] == [413, 400]
    assert view().users[0].name == "alice"
    assert view().users[0].rejected == 4


def status(client: Peer) -> Any:
    topic = f"{NODE}/status"
    if not any(at == topic for at, _, _ in client.messages):
        client.watch(topic)
        client.wait(lambda: any(at == topic for at, _, _ in client.messages))
    return json.loads([payload for at, payload, _ in client.messages if at == topic][-1])


def test_a_full_queue_says_when_to_come_again(
    broker: Mosquitto, alice: Peer, tmp_path: Path
) -> None:
    engine = ScriptedEngine(knobs=Knobs(queue_limit=2, max_num_seqs=1))
    with serving(broker.port, tmp_path, engine=engine):
        alice.watch(f"{NODE}/metrics")
        alice.wait(lambda: any("metrics" in topic for topic, _, _ in alice.messages))
        for name in "123":
            alice.ask(name)
        error = alice.end("3")
        assert error["error"]["code"] == 429
        assert error["queue_depth"] == 2
        assert error["retry_after_ms"] >= 250


def test_quotas_bound_what_a_user_has_open(broker: Mosquitto, alice: Peer, tmp_path: Path) -> None:
    settings = {"quota": {"requests": 2}, "users": {"bob": {"requests": 3, "max_priority": 7}}}
    with serving(broker.port, tmp_path, **settings) as served:
        for name in "123":
            alice.ask(name, priority=9)
        error = alice.end("3")
        assert error["error"]["code"] == 429
        assert error["retry_after_ms"] > 0
        assert [s.priority for s in served.engine.submissions] == [0, 0]
        with peer(broker.port, user="bob", client="b") as bob:
            for name in "123":
                bob.ask(name, priority=9)
            served.accepted(5)
            assert [s.priority for s in served.engine.submissions[2:]] == [7, 7, 7]
        finish(served, alice, "1")
        alice.ask("3")
        served.accepted(6)


def test_a_user_may_have_a_rate(broker: Mosquitto, alice: Peer, tmp_path: Path) -> None:
    with serving(broker.port, tmp_path, quota={"per_minute": 2}) as served:
        for name in "123":
            alice.ask(name)
            if name != "3":
                finish(served, alice, name)
        error = alice.end("3")
        assert "a minute" in error["error"]["message"]
        assert 1000 < error["retry_after_ms"] <= 30_000


def test_clients_of_3_1_1_get_the_same(served: Serving, broker: Mosquitto) -> None:
    with peer(broker.port, client="old", protocol="3.1.1") as old:
        old.ask("1", "hello", delta_qos=1)
        served.accepted(1)
        assert finish(served, old, "1")["text"] == "You said: hello"


def test_the_card_tells_the_node_and_its_will_that_it_is_gone(
    broker: Mosquitto, alice: Peer, tmp_path: Path
) -> None:
    with serving(broker.port, tmp_path) as served:
        served.until(lambda: status(alice)["model"])
        card = status(alice)
        assert (card["node"], card["pool"], card["state"]) == ("box", "default", "online")
        assert card["model"]["name"] == "scripted"
        assert card["limits"]["max_request_bytes"] == 262_144
    alice.settle()
    gone = status(alice)
    assert gone["state"] == "offline"
    assert gone["boot_id"] == card["boot_id"]


def test_metrics_come_by_themselves(served: Serving, alice: Peer) -> None:
    alice.watch(f"{NODE}/metrics")
    alice.ask("1")
    served.accepted(1)
    finish(served, alice, "1")

    def newest() -> Any:
        found = [json.loads(p) for topic, p, _ in alice.messages if topic.endswith("/metrics")]
        return found[-1] if found else {"mqtt": {"finished": 0}}

    alice.wait(lambda: newest()["mqtt"]["finished"] == 1)
    figures = newest()
    assert figures["kv_total"] == 256
    assert figures["ttft_ms"]["p50"] > 0
    assert figures["mqtt"]["first_token_ms"]["p99"] > 0


def test_knobs_are_shown_and_turned(served: Serving, alice: Peer) -> None:
    alice.watch(f"{NODE}/knobs")
    alice.watch(f"{NODE}/knobs/result")

    def last(name: str) -> Any:
        found = [p for topic, p, _ in alice.messages if topic == f"{NODE}/{name}"]
        return json.loads(found[-1]) if found else None

    alice.wait(lambda: last("knobs"))
    assert last("knobs")["knobs"]["max_num_seqs"]["effective"] > 0
    alice.publish(f"{NODE}/knobs/set", json.dumps({"set": {"max_num_seqs": 3}, "who": "ops"}))
    served.run(lambda: last("knobs/result"))
    assert last("knobs/result")["ok"]
    alice.wait(lambda: last("knobs")["knobs"]["max_num_seqs"]["requested"] == 3)
    assert last("knobs")["history"][-1]["who"] == "ops"
    before = len(alice.messages)
    for payload, part in ((b'{"set": {"max_num_seqs": 0}}', "max_num_seqs"), (b"{", "JSON")):
        alice.publish(f"{NODE}/knobs/set", payload)
        alice.wait(lambda: len([m for m in alice.messages if m[0].endswith("result")]) > 1)
        alice.wait(
            lambda part=part: part in last("knobs/result").get("error", {}).get("message", "")
        )
    assert len(alice.messages) > before


def test_retained_messages_do_nothing(broker: Mosquitto, alice: Peer, tmp_path: Path) -> None:
    topic = alice.topic("req", "1")
    body = {"messages": [{"role": "user", "content": "hello"}]}
    try:
        alice.publish(topic, json.dumps(body), retain=True)
        alice.publish(f"{NODE}/knobs/set", b'{"set": {"paused": true}}', retain=True)
        with serving(broker.port, tmp_path) as served:
            served.until(lambda: len(served.gateway.view().bad) >= 1)
            alice.ask("2")
            served.accepted(1)
            assert len(served.engine.submissions) == 1
            assert not served.engine.snapshot().knob_history  # type: ignore[union-attr]
    finally:
        alice.publish(topic, b"", retain=True)
        alice.publish(f"{NODE}/knobs/set", b"", retain=True)


def test_stopping_lets_requests_end_and_tells_the_others(
    broker: Mosquitto, alice: Peer, tmp_path: Path
) -> None:
    with serving(broker.port, tmp_path) as served:
        alice.ask("short")
        served.accepted(1)
        with served.running():
            served.stop(5.0)
        assert alice.end("short")["type"] == "final"
    with serving(broker.port, tmp_path) as served:
        alice.ask("long")
        served.accepted(1)
        served.stop(0.0)
        error = alice.end("long")
        assert (error["error"]["code"], error["error"]["retryable"]) == (503, True)
        assert served.engine.snapshot().num_running == 0  # type: ignore[union-attr]


def test_who_watches_sees_the_chat_as_it_stands(served: Serving, alice: Peer) -> None:
    told = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "second"},
    ]
    alice.ask("1", messages=told)
    served.accepted(1)
    key = "default/alice/phone/1"
    served.engine.advance(2)
    transcript = served.gateway.transcript
    served.until(lambda: (found := transcript(key)) and found.messages[-1].content)
    running = transcript(key)
    assert running is not None
    assert running.request_id == key
    assert [m.content for m in running.messages[:3]] == ["first", "yes", "second"]
    assert running.conversation.user == "alice"
    assert running.num_prompt_tokens == len(served.engine.prompts[key])
    assert running.num_output_tokens > 0
    finish(served, alice, "1")
    ended = transcript(key)
    assert ended is not None
    assert ended.version > running.version
    assert ended.request_id is None
    assert (ended.num_prompt_tokens, ended.num_output_tokens) == (0, 0)
    assert ended.messages[-1].finish_reason is FinishReason.STOP
    assert transcript("nobody/knows/this/one") is None


def test_a_watched_session_goes_on(served: Serving, alice: Peer) -> None:
    for number in "12":
        alice.ask(number, f"turn {number}", session_id="s")
        served.accepted(int(number))
        finish(served, alice, number)
    first = served.gateway.transcript("default/alice/phone/1")
    assert first is not None
    assert [m.content for m in first.messages if m.role == "user"] == ["turn 1", "turn 2"]


def test_publish_to_first_token_counts_from_when_it_was_sent(served: Serving, alice: Peer) -> None:
    alice.ask("1", sent_at=time.time() - 5.0)
    served.accepted(1)
    finish(served, alice, "1")
    served.until(lambda: served.gateway.view().first_token.count == 1)
    assert served.gateway.view().first_token.p50 > 5.0


def test_an_empty_question_is_refused(served: Serving, alice: Peer) -> None:
    alice.ask("1", "  ", session_id="s")
    assert alice.end("1")["error"]["code"] == 400


def test_a_second_node_of_a_pool_stands_by(
    broker: Mosquitto, alice: Peer, tmp_path: Path, served: Serving
) -> None:
    with serving(broker.port, tmp_path / "other", node="spare") as spare:
        spare.until(lambda: "stands by" in spare.gateway.view().detail)
        alice.ask("1")
        served.accepted(1)
        finish(served, alice, "1")
        alice.settle()
        assert len(alice.ends("1")) == 1
        served.stop(0.0)
        spare.until(lambda: not spare.gateway.view().detail)
        alice.ask("2")
        spare.accepted(1)
        finish(spare, alice, "2")
        alice.settle()
        assert len(alice.ends("2")) == 1


def test_a_node_that_comes_back_leaves_to_others_what_they_answered(tmp_path: Path) -> None:
    with Mosquitto() as broker, peer(broker.port) as alice:
        with serving(broker.port, tmp_path / "box") as box:
            with serving(broker.port, tmp_path / "spare", node="spare") as spare:
                spare.until(lambda: "stands by" in spare.gateway.view().detail)
            # More than are in flight at once: the cards must not wait behind them.
            names = [str(number) for number in range(50)]
            for name in names:
                alice.ask(name)
            box.accepted(16)
            with serving(broker.port, tmp_path / "spare", node="spare") as spare, box.running():
                for name in names:
                    alice.end(name)
                spare.until(lambda: spare.gateway.view().received >= 50)
                spare.until(lambda: not spare.gateway._inbox)
                assert not spare.engine.submissions
        alice.settle()
        assert all(len(alice.ends(name)) == 1 for name in names)


def test_a_card_that_was_left_behind_can_be_removed(
    broker: Mosquitto, alice: Peer, tmp_path: Path
) -> None:
    topic = "llm/v1/default/node/ghost/status"
    with serving(broker.port, tmp_path / "ghost", node="ghost") as ghost:
        card = ghost.gateway._node.card
    alice.publish(topic, card.payload, retain=True)
    try:
        with serving(broker.port, tmp_path / "new", node="new") as served:
            served.until(lambda: served.gateway.view().detail)
            assert "ghost" in served.gateway.view().detail
            alice.publish(topic, b"", retain=True)
            served.until(lambda: not served.gateway.view().detail)
    finally:
        alice.publish(topic, b"", retain=True)


def test_it_says_goodbye_though_an_ending_cannot_be_told(tmp_path: Path) -> None:
    access = tmp_path / "access"
    access.write_text(
        "topic readwrite llm/v1/default/req/#\n"
        "topic readwrite llm/v1/default/cancel/#\n"
        "topic readwrite llm/v1/default/node/#\n"
        "topic read llm/v1/default/rep/#\n"
    )
    options = ("allow_anonymous true", f"acl_file {access}")
    with Mosquitto(options) as broker, peer(broker.port) as alice:
        with serving(broker.port, tmp_path) as served:
            served.until(lambda: status(alice)["state"] == "online")
            alice.ask("1")
            served.accepted(1)
            served.run(lambda: served.gateway.view().undelivered)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(gateway, "FAREWELL_SECONDS", 0.1)
                served.stop(0.0)
        alice.wait(lambda: status(alice)["state"] == "offline")


def test_it_ends_well_after_it_was_told_to_reconnect(
    broker: Mosquitto, alice: Peer, tmp_path: Path
) -> None:
    with serving(broker.port, tmp_path) as served:
        served.gateway.reconnect()
        alice.ask("1")
        served.accepted(1)
        served.stop(0.0)
        assert not served.gateway.failure


def test_what_made_it_fail_is_named_and_nothing_is_left_to_watch(
    served: Serving, alice: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice.ask("1")
    served.accepted(1)
    assert served.gateway.transcript("default/alice/phone/1") is not None

    def fail(*_: object) -> None:
        raise ValueError("no such figure")

    monkeypatch.setattr(served.gateway._node, "look", fail)
    served.until(lambda: served.gateway.wait_ended(0.0))
    assert served.gateway.failure == "ValueError: no such figure"
    assert served.gateway.transcript("default/alice/phone/1") is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_store_that_cannot_be_closed_keeps_nobody_waiting(
    served: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = served.gateway._store.close

    def fail() -> None:
        close()
        raise OSError(errno.EROFS, "read-only file system")

    monkeypatch.setattr(served.gateway._store, "close", fail)
    served.gateway._call(served.gateway._close, 0.0)
    assert served.gateway.wait_ended(TIMEOUT)


def test_a_mistake_of_ours_takes_no_other_request_along(
    served: Serving, alice: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(payload: bytes, caller: Caller) -> ChatRequest:
        if caller.request_id == "bad":
            raise RuntimeError("a mistake")
        return parse_request(payload, caller)

    monkeypatch.setattr(intake, "parse_request", parse)
    hold = threading.Event()
    served.gateway._call(hold.wait)
    for name in ("1", "bad", "2"):
        alice.ask(name)
    hold.set()
    error = alice.end("bad")["error"]
    assert (error["code"], error["retryable"]) == (500, True)
    served.accepted(2)
    assert len(served.gateway._exchanges) == 2


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


def test_no_refusal_is_lost_for_want_of_room(
    served: Serving, alice: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "MAX_MESSAGES", 5)
    monkeypatch.setattr(link, "CONGESTED_MESSAGES", 5)
    monkeypatch.setattr(intake, "RETRY_SECONDS", 0.02)
    hold = threading.Event()
    served.gateway._call(hold.wait)
    names = [str(number) for number in range(20)]
    for name in names:
        alice.publish(alice.topic("req", name), b"{")
    hold.set()
    for name in names:
        assert alice.end(name)["error"]["code"] == 400


def test_while_the_model_changes_none_is_promised(served: Serving, alice: Peer) -> None:
    served.engine.load(LoadRequest(model="models/other"))
    alice.ask("1", model="scripted")
    error = alice.end("1")["error"]
    assert (error["code"], error["retryable"], error["param"]) == (503, True, "model")


def test_deltas_that_are_held_back_cost_no_time(
    served: Serving, alice: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "CONGESTED_MESSAGES", 0)
    flushes: list[float] = []
    flush = served.gateway._exchanges._flush

    def watched() -> None:
        flushes.append(time.monotonic())
        flush()

    monkeypatch.setattr(served.gateway._exchanges, "_flush", watched)
    alice.ask("1", "tell me all of it")
    served.accepted(1)
    served.engine.advance(3)
    served.until(lambda: len(flushes) > 5)
    assert min(after - before for before, after in itertools.pairwise(flushes)) > 0.01
