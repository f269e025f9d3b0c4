"""A store that cannot be written: nothing is accepted, and what has ended is told later."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.gateway.mqtt import exchanges, gateway
from tests.support.brokers import Mosquitto
from tests.support.mqtt_peer import peer
from tests.support.mqtt_serving import Serving, serving


def write_protect(served: Serving, on: bool) -> None:
    """Have SQLite refuse every write of the gateway's."""
    served.gateway._store._db.read(f"PRAGMA query_only = {int(on)}")


def fill(served: Serving) -> None:
    """Leave it no page more than it has, and none of those free."""
    database = served.gateway._store._db
    (row,) = database.read("PRAGMA page_count")
    database.read(f"PRAGMA max_page_count = {row[0]}")


@pytest.fixture(autouse=True)
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "RETRY_SECONDS", 0.02)


def test_what_cannot_be_journalled_is_not_accepted(
    broker: Mosquitto, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(broker.port, tmp_path) as served, peer(broker.port) as alice:
        write_protect(served, True)
        for n in range(3):
            alice.ask(str(n), session_id=f"s{n}")
            error = alice.end(str(n))
            assert (error["error"]["code"], error["attempt"]) == (503, None)
            assert error["error"]["retryable"]
            assert [r["type"] for r in alice.replies(str(n))] == ["error"]
        assert "cannot be written" in caplog.text
        assert not served.engine.submissions
        write_protect(served, False)
        for n in range(3):
            alice.ask(str(n), session_id=f"s{n}")
        served.run(lambda: all(len(alice.ends(str(n))) == 2 for n in range(3)))
        assert all(alice.end(str(n), 2)["type"] == "final" for n in range(3))
        # They were acknowledged: the broker does not send them again.
        assert len(served.engine.submissions) == 3
        assert served.gateway._quotas._users["alice"].open == 0
        served.check_idle()


def test_an_ending_is_told_once_it_is_journalled(broker: Mosquitto, tmp_path: Path) -> None:
    with serving(broker.port, tmp_path) as served, peer(broker.port) as alice:
        for n in range(3):
            alice.ask(str(n))
        served.accepted(3)
        write_protect(served, True)
        alice.cancel("2")
        served.until(lambda: served.gateway._exchanges._unsaved)
        served.engine.finish_all()
        served.until(lambda: len(served.gateway._exchanges._unsaved) == 3)
        alice.ask("another")
        assert alice.end("another")["error"]["code"] == 503
        alice.settle()
        assert not any(alice.ends(str(n)) for n in range(3))
        # A duplicate runs no second time meanwhile.
        alice.ask("0")
        alice.wait(lambda: [r["type"] for r in alice.replies("0")].count("accepted") == 2)
        write_protect(served, False)
        ends = [alice.end(str(n)) for n in range(3)]
        assert [end["type"] for end in ends] == ["final", "final", "error"]
        alice.settle()
        assert all(len(alice.ends(str(n))) == 1 for n in range(3))
        assert len(served.engine.submissions) == 3
        served.check_idle()


def test_a_full_disk_is_said_to_be_one(
    broker: Mosquitto, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(broker.port, tmp_path) as served, peer(broker.port) as alice:
        fill(served)
        question = "word " * 400  # a session's, which is kept
        served.engine._replies = {question: "yes"}  # type: ignore[assignment]
        codes = []
        for n in range(40):
            alice.ask(str(n), question, session_id=f"s{n}")
            served.run(lambda n=n: alice.ends(str(n)) or served.gateway._exchanges._unsaved)
            if not alice.ends(str(n)):
                break  # There was room to accept it, and none for its end.
            codes.append(alice.ends(str(n))[0].get("error", {}).get("code"))
            if codes[-1] is not None:
                break
        assert "the disk is full" in caplog.text
        assert set(codes[:-1]) <= {None}
        served.gateway._store._db.read("PRAGMA max_page_count = 1000000")
        alice.ask("after")
        served.run(lambda: alice.ends("after"))
        served.check_idle()


def test_a_store_that_is_still_unwritable_at_the_end_is_told_of_after_the_next_start(
    broker: Mosquitto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "FAREWELL_SECONDS", 0.1)
    with peer(broker.port) as alice:
        with serving(broker.port, tmp_path) as served:
            alice.ask("1")
            served.accepted(1)
            write_protect(served, True)
            served.engine.finish_all()
            served.until(lambda: served.gateway._exchanges._unsaved)
        assert not alice.ends("1")
        with serving(broker.port, tmp_path):
            error = alice.end("1")
            # It did end; but nobody had been told, and the journal does not know how.
            assert (error["attempt"], error["error"]["code"]) == (1, 503)
            assert error["error"]["retryable"]
