"""Two servers of one pool: what the survivor does for the one that was killed."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

from tests.support.brokers import Mosquitto
from tests.support.mqtt_peer import Peer, peer
from tests.support.mqtt_server import Server, server
from tests.support.mqtt_serving import serving

WORDS = "word " * 300


def ends_of(client: Peer, request_id: str) -> dict[int, set[str]]:
    """The endings that came, by attempt, each once."""
    ends = defaultdict(set)
    for end in client.ends(request_id):
        if end["attempt"] is not None:
            ends[end["attempt"]].add(json.dumps(end))
    return ends


def test_the_survivor_ends_what_the_dead_one_accepted(broker: Mosquitto, tmp_path: Path) -> None:
    """They share a store, as two servers with default settings on one machine do."""
    names = [str(number) for number in range(8)]
    with peer(broker.port) as alice:
        first = Server(broker.port, tmp_path, node="first", step_seconds=0.02)
        with serving(broker.port, tmp_path, node="second") as second, second.running():
            second.until(lambda: "first serves" in second.gateway.view().detail)
            for name in names:
                alice.ask(name, WORDS, session_id=name)
            alice.wait(lambda: all(alice.replies(name) for name in names))
            first.kill()
            for name in names:
                end = alice.end(name)
                assert (end["attempt"], end["error"]["code"]) == (1, 503)
                assert end["error"]["retryable"]
            for name in names:  # their sessions go on
                alice.ask(name, WORDS, session_id=name)
            alice.wait(lambda: all(len(alice.ends(name)) == 2 for name in names))
            for name in names:
                last = alice.ends(name)[-1]
                assert last["attempt"] > 1
                assert last["text"] == f"You said: {WORDS}"
            second.check_idle()
        with server(broker.port, tmp_path, node="first"):
            alice.ask("last")
            alice.end("last")
        # What the broker has kept for it has ended: it may be told again, and not otherwise.
        assert all(len(told) == 1 for name in names for told in ends_of(alice, name).values())


def test_a_server_that_dies_while_it_stands_by_is_adopted_too(
    broker: Mosquitto, tmp_path: Path
) -> None:
    with peer(broker.port) as alice:
        first = Server(broker.port, tmp_path, node="first", step_seconds=0.02)
        with serving(broker.port, tmp_path, node="second") as second:
            second.until(lambda: "first serves" in second.gateway.view().detail)
            received = second.gateway._link.received
            alice.ask("1", WORDS)
            alice.wait(lambda: alice.replies("1"))
            # It was asked of both; what the second has not looked at yet it would answer itself.
            second.settle(received + 1)
            # The broker takes it for gone; the process lives on with what it has accepted.
            alice.publish("llm/v1/default/node/first/status", b"", retain=True)
            second.until(lambda: not second.gateway.view().detail)
            assert not alice.ends("1")
            first.kill()
            assert alice.end("1")["error"]["code"] == 503


def test_no_attempt_has_two_endings_where_each_has_a_store(
    broker: Mosquitto, tmp_path: Path
) -> None:
    with peer(broker.port) as alice:
        alice.watch("llm/v1/default/node/+/status")
        first = Server(broker.port, tmp_path / "first", node="first", step_seconds=0.02)
        second = Server(broker.port, tmp_path / "second", node="second")
        wait_for(alice, "second", "standby")
        alice.ask("1", WORDS)
        alice.wait(lambda: alice.replies("1"))
        first.kill()
        wait_for(alice, "second", "online")
        alice.ask("1", WORDS)
        assert alice.end("1")["type"] == "final"
        (attempt,) = ends_of(alice, "1")
        with server(broker.port, tmp_path / "first", node="first"):
            # It still says what became of its own.
            alice.wait(lambda: 1 in ends_of(alice, "1"))
            second.kill()
            wait_for(alice, "first", "online")
            # What it is asked again it runs, for it does not know of the other's answer.
            alice.ask("1", WORDS)
            alice.wait(lambda: len(ends_of(alice, "1")) == 3)
        attempts = ends_of(alice, "1")
        assert sorted(attempts)[:2] == [1, attempt], "the newer node's attempt is the larger"
        assert all(len(told) == 1 for told in attempts.values())
        assert [json.loads(*attempts[a])["type"] for a in sorted(attempts)] == [
            "error",
            "final",
            "final",
        ]


def wait_for(client: Peer, node: str, state: str) -> None:
    """Until the card of a node says this."""
    topic = f"llm/v1/default/node/{node}/status"

    def cards() -> list[bytes]:
        return [payload for at, payload, _ in tuple(client.messages) if at == topic]

    client.wait(lambda: cards() and json.loads(cards()[-1])["state"] == state)
