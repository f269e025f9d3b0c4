"""The end of a gateway: what runs ends, what is left is told, nobody waits for ever."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from app.gateway.mqtt import gateway
from tests.support.brokers import Mosquitto
from tests.support.mqtt_asking import status
from tests.support.mqtt_peer import Peer, peer
from tests.support.mqtt_serving import TIMEOUT, Serving, serving


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


def test_who_is_refused_while_it_ends_is_told(
    broker: Mosquitto, alice: Peer, tmp_path: Path
) -> None:
    """More than the broker confirms at once: those that waited for their turn went with the
    connection, and nothing was heard of them until the next start."""
    with serving(broker.port, tmp_path) as served:
        for number in range(200):
            alice.ask(str(number), priority="none", mqtt_wait=False)
        served.until(lambda: served.gateway.view().rejected)
        served.stop(0.0)
        refused = sum(rejection.count for rejection in served.gateway._tally.rejected)
        alice.wait(lambda: sum(len(alice.ends(str(n))) for n in range(200)) == refused)


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
    transcript = served.gateway.transcript("default/alice/phone/1")
    assert transcript is not None
    assert served.gateway.holds(transcript.conversation.id)

    def fail(*_: object) -> None:
        raise ValueError("no such figure")

    monkeypatch.setattr(served.gateway._node, "update", fail)
    served.until(lambda: served.gateway.wait_ended(0.0))
    assert served.gateway.failure == "ValueError: no such figure"
    assert served.gateway.transcript("default/alice/phone/1") is None
    assert not served.gateway.holds(transcript.conversation.id)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_store_that_cannot_be_closed_keeps_nobody_waiting(
    served: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = served.gateway._store._db
    close, closed = database.close, threading.Event()

    def fail() -> None:
        close()
        closed.set()
        raise OSError(errno.EROFS, "read-only file system")

    monkeypatch.setattr(database, "close", fail)
    served.gateway._thread.call(served.gateway._close, 0.0)
    assert served.gateway.wait_ended(TIMEOUT)
    assert closed.is_set()
