"""Cancels that race what they cancel."""

from __future__ import annotations

import time
from pathlib import Path

from engine.api.knobs import Knobs
from tests.support.brokers import Mosquitto
from tests.support.mqtt_peer import peer
from tests.support.mqtt_serving import serving
from tests.support.scripted_engine import ScriptedEngine


def test_a_cancel_at_any_time_gives_one_ending(broker: Mosquitto, tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda _: "five words and no more")
    with serving(broker.port, tmp_path, engine=engine) as served, peer(broker.port) as alice:
        kinds = set()
        names = [f"{before}-{has_it}" for before in range(7) for has_it in (0, 1)]
        for count, name in enumerate(names, 1):
            before, has_it = map(int, name.split("-"))
            alice.ask(name)
            served.accepted(count)
            engine.advance(before)
            # Whether the broker has it, or the last steps overtake it.
            alice.publish(alice.topic("cancel", name), wait=bool(has_it))
            while not alice.ends(name):
                engine.advance()
                time.sleep(0.0005)  # a step's time, so that either may win
            kinds.add(alice.ends(name)[0]["type"])
        alice.settle()
        assert kinds == {"final", "error"}
        for name in names:
            (end,) = alice.ends(name)
            assert end["attempt"] == 1
            assert end == alice.replies(name)[-1]
            if end["type"] == "error":
                assert end["error"]["code"] == 499
                assert not end["error"]["retryable"]
            # Too late to cancel, and told again.
            alice.cancel(name)
            alice.ask(name)
            assert alice.end(name, 2) == end
        assert len(engine.submissions) == len(names)
        served.check_idle()


def test_a_cancel_right_behind_its_request_is_obeyed(broker: Mosquitto, tmp_path: Path) -> None:
    with serving(broker.port, tmp_path) as served, peer(broker.port) as alice:
        # In one packet: both are in one batch.
        for name in map(str, range(20)):
            alice.ask(name, mqtt_wait=False)
            alice.publish(alice.topic("cancel", name), wait=False)
        for name in map(str, range(20)):
            assert alice.end(name)["error"]["code"] == 499
        served.check_idle()
        assert all(view.output_tokens == 0 for view in served.engine.snapshot().requests)


def test_what_waits_is_cancelled_without_a_step(broker: Mosquitto, tmp_path: Path) -> None:
    engine = ScriptedEngine(knobs=Knobs(max_num_seqs=1))
    with serving(broker.port, tmp_path, engine=engine) as served, peer(broker.port) as alice:
        for name in "123":
            alice.ask(name)
        served.accepted(3)
        engine.advance()
        alice.cancel("2")
        assert alice.end("2")["error"]["code"] == 499
        alice.cancel("*")
        for name in "13":
            assert alice.end(name)["error"]["code"] == 499
        served.check_idle()


def test_a_cancel_that_nobody_knows_is_nothing(broker: Mosquitto, tmp_path: Path) -> None:
    with (
        serving(broker.port, tmp_path) as served,
        peer(broker.port) as alice,
        peer(broker.port, user="mallory", client="other") as mallory,
    ):
        alice.ask("1")
        served.accepted(1)
        for name in ("1", "*", "2"):
            mallory.cancel(name)
        alice.cancel("unknown")
        mallory.settle()
        served.run(lambda: alice.ends("1"))
        assert [end["type"] for end in alice.ends("1")] == ["final"]
        assert not alice.ends("unknown")
