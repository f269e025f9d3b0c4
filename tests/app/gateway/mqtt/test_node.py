"""A node and its pool: card, figures, knobs, and who serves beside whom."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from engine.api.client import LoadRequest
from tests.support.brokers import Mosquitto
from tests.support.mqtt_asking import NODE, finish, status
from tests.support.mqtt_peer import Peer, peer
from tests.support.mqtt_serving import Serving, serving
from tests.support.scripted_core import BASE


def test_the_card_tells_the_node_and_its_will_that_it_is_gone(
    broker: Mosquitto, alice: Peer, tmp_path: Path
) -> None:
    with serving(broker.port, tmp_path) as served:
        served.until(lambda: status(alice)["model"])
        card = status(alice)
        assert (card["node"], card["pool"], card["state"]) == ("box", "default", "online")
        assert card["model"]["name"] == "scripted"
        assert card["model"]["quantize"] == "none"
        served.engine.load(LoadRequest("scripted", quantize="int8"))
        served.engine.ready()
        served.until(lambda: (status(alice)["model"] or {}).get("quantize") == "int8")
        assert card["limits"]["max_request_bytes"] == 262_144
        assert card["model"]["has_chat_template"]
        served.engine.load(LoadRequest(BASE))
        served.engine.ready()
        served.until(lambda: (status(alice)["model"] or {}).get("has_chat_template") is False)
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
    for payload, part in (
        (b'{"set": {"max_num_seqs": 0}}', "max_num_seqs"),
        (b"{", "JSON"),
        (b" " * 65_537, "the message has 65537 bytes; at most 65536 are allowed"),
    ):
        alice.publish(f"{NODE}/knobs/set", payload)
        alice.wait(lambda: len([m for m in alice.messages if m[0].endswith("result")]) > 1)
        alice.wait(
            lambda part=part: part in last("knobs/result").get("error", {}).get("message", "")
        )
    assert len(alice.messages) > before


def test_publish_to_first_token_counts_from_when_it_was_sent(served: Serving, alice: Peer) -> None:
    alice.ask("1", sent_at=time.time() - 5.0)
    served.accepted(1)
    finish(served, alice, "1")
    served.until(lambda: served.gateway.view().first_token.count == 1)
    assert served.gateway.view().first_token.p50 > 5.0


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
