"""Refusals: what cannot be served is told so, with a code and when to come again."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from app.gateway.mqtt import intake
from app.gateway.mqtt.protocol.parsing import parse_request
from app.gateway.mqtt.protocol.requests import ChatRequest
from app.gateway.mqtt.protocol.topics import Caller
from app.gateway.mqtt.transport import link
from engine.api.client import LoadRequest
from engine.api.knobs import Knobs
from tests.support.brokers import Mosquitto
from tests.support.mqtt_asking import NODE, finish, status
from tests.support.mqtt_peer import Peer, peer
from tests.support.mqtt_serving import Serving, serving
from tests.support.scripted_engine import ScriptedEngine


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


@pytest.mark.parametrize("separate", [False, True])
def test_a_salt_and_users_that_are_apart_reach_the_engine(
    separate: bool, broker: Mosquitto, tmp_path: Path
) -> None:
    salts = []
    with serving(broker.port, tmp_path, separate_caches=separate) as served:
        for user in ("alice", "bob"):
            with peer(broker.port, user=user, client=user) as asker:
                asker.ask("none")
                asker.ask("salt", cache_salt="s")
                asker.ask("empty", cache_salt="")
                error = asker.end("empty")["error"]
                assert (error["code"], error["param"]) == (400, "cache_salt")
                assert error["message"].endswith("it must be text of 1 to 256 characters")
            served.accepted(len(salts) + 2)
            salts = [one.cache_salt for one in served.engine.submissions]
    assert len(set(salts)) == (4 if separate else 2)
    assert ("" in salts) is not separate


def test_why_no_model_could_be_loaded_is_told_to_no_client(served: Serving, alice: Peer) -> None:
    alice.ask("waits")
    served.accepted(1)
    served.engine.fail("could not load /srv/models/x.gguf: it is damaged")
    alice.ask("late")
    for name in ("waits", "late"):
        error = alice.end(name)["error"]
        told = "no model is loaded: the server's log says why"
        assert (error["code"], error["message"]) == (503, told)


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


def test_a_mistake_of_ours_takes_no_other_request_along(
    served: Serving, alice: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(payload: bytes, caller: Caller) -> ChatRequest:
        if caller.request_id == "bad":
            raise RuntimeError("a mistake")
        return parse_request(payload, caller)

    monkeypatch.setattr(intake, "parse_request", parse)
    hold = threading.Event()
    served.gateway._thread.call(hold.wait)
    for name in ("1", "bad", "2"):
        alice.ask(name)
    hold.set()
    error = alice.end("bad")["error"]
    assert (error["code"], error["retryable"]) == (500, True)
    served.accepted(2)
    assert len(served.gateway._exchanges) == 2


def test_no_refusal_is_lost_for_want_of_room(
    served: Serving, alice: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "MAX_MESSAGES", 5)
    monkeypatch.setattr(link, "CONGESTED_MESSAGES", 5)
    monkeypatch.setattr(intake, "RETRY_SECONDS", 0.02)
    hold = threading.Event()
    served.gateway._thread.call(hold.wait)
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
