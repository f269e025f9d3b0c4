"""A server that is killed at the worst moments, and what its successor tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers import Mosquitto
from tests.support.mqtt_peer import Peer, peer
from tests.support.mqtt_server import Server, server

STATUS = "llm/v1/default/node/box/status"


def types(client: Peer, request_id: str) -> list[tuple[str, int]]:
    """The messages to a request, each kind and attempt once."""
    found = [(r["type"], r["attempt"]) for r in client.replies(request_id)]
    return list(dict.fromkeys(found))


def ends_of(client: Peer, request_id: str, attempt: int) -> list[dict[str, Any]]:
    return [end for end in client.ends(request_id) if end["attempt"] == attempt]


def test_whoever_was_answered_is_told_to_ask_again(broker: Mosquitto, tmp_path: Path) -> None:
    words = "word " * 300
    with peer(broker.port) as alice:
        alice.watch(STATUS)
        first = Server(broker.port, tmp_path)
        for name in "12":
            alice.ask(name, words)
        alice.wait(lambda: ("delta", 1) in types(alice, "1") and ("delta", 1) in types(alice, "2"))
        first.kill()

        def card() -> dict[str, Any]:
            at_all = [json.loads(p) for topic, p, _ in tuple(alice.messages) if topic == STATUS]
            return at_all[-1] if at_all else {}

        alice.wait(
            lambda: (card().get("boot_id"), card().get("state")) == (first.boot_id, "offline")
        )
        assert not alice.ends("1")
        with server(broker.port, tmp_path) as second:
            assert second.boot_id != first.boot_id
            for name in "12":
                end = alice.end(name)
                assert (end["attempt"], end["error"]["code"]) == (1, 503)
                assert end["error"]["retryable"]
                alice.ask(name, words)
                alice.wait(lambda name=name: ends_of(alice, name, 2))
                again = [r for r in alice.replies(name) if r["attempt"] == 2]
                assert again[0]["type"] == "accepted"
                assert [r["seq"] for r in again if r["type"] == "delta"][:2] == [0, 1]
                assert again[-1]["text"] == f"You said: {words}"
                assert len(alice.ends(name)) == 2
            assert card()["boot_id"] == second.boot_id


@pytest.mark.parametrize(
    ("moment", "told"),
    [
        # The broker sends it again, which is a second attempt.
        ("journalled", [("error", 1), ("accepted", 2), ("final", 2)]),
        ("ended", [("accepted", 1), ("final", 1)]),
        ("told", [("accepted", 1), ("final", 1)]),
    ],
)
def test_no_moment_to_die_loses_an_ending_or_gives_two(
    broker: Mosquitto, tmp_path: Path, moment: str, told: list[tuple[str, int]]
) -> None:
    with peer(broker.port) as alice:
        first = Server(broker.port, tmp_path, die=moment)
        alice.ask("1", "some words")
        first.wait()
        before = len(alice.ends("1"))
        assert before == (moment == "told")
        with server(broker.port, tmp_path):
            alice.wait(lambda: len(alice.ends("1")) > before and types(alice, "1")[-1] == told[-1])
            alice.ask("2")
            alice.end("2")
        # A delta may die with its process. The final message has all of the text.
        kept = [one for one in types(alice, "1") if one[0] != "delta"]
        assert sorted(kept) == sorted(told)
        for attempt in {attempt for _, attempt in told}:
            ends = ends_of(alice, "1", attempt)
            assert all(end == ends[0] for end in ends)
            if ends[0]["type"] == "final":
                assert ends[0]["text"] == "You said: some words"


def test_a_session_goes_on_after_its_server_was_killed(broker: Mosquitto, tmp_path: Path) -> None:
    words = "word " * 200
    with peer(broker.port) as alice:
        first = Server(broker.port, tmp_path)
        alice.ask("1", "first", session_id="s")
        alice.end("1")
        alice.ask("2", words, session_id="s")
        alice.wait(lambda: ("delta", 1) in types(alice, "2"))
        first.kill()
        with server(broker.port, tmp_path):
            assert alice.end("2")["error"]["retryable"]
            alice.ask("2", words, session_id="s")
            final = alice.end("2", 2)
            assert final["text"] == f"You said: {words}"
            # Of the turn before, the answer that was cut off is no part.
            assert 200 < final["usage"]["prompt_tokens"] < 300
