"""Chats over MQTT expire in small portions, and the file shrinks."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from app.gateway.mqtt import retention
from app.gateway.mqtt.retention import DAY, Retention
from app.store.conversation import Conversation, Message
from app.store.database import StoreError
from app.store.journal import JournalEntry
from app.store.store import Store
from engine.api.lifecycle import FinishReason
from tests.support.brokers import Mosquitto
from tests.support.mqtt_peer import peer
from tests.support.mqtt_serving import serving

NOW = 1000.0 * DAY


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "batchdeck.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with closing(Store(path)) as one:
        yield one


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "PAUSE_SECONDS", 0.0)


def keep(store: Store, name: str, age: float, source: str = "mqtt", text: str = "text") -> None:
    """A conversation of one turn that ended `age` days ago."""
    updated = NOW - age * DAY
    conversation = Conversation(id=name, source=source, created=0.0, updated=updated)
    asked = Message(conversation_id=name, parent_id=None, role="user", content=text)
    reply = Message(conversation_id=name, parent_id=asked.id, role="assistant", content=text)
    conversation.leaf = reply.id
    with store.transaction():
        store.save_conversation(conversation)
        store.save_message(asked)
        store.save_message(reply)


def names(store: Store) -> list[str]:
    return sorted(conversation.id for conversation in store.conversations())


async def sweep(store: Store, days: float) -> None:
    await Retention(store, "lab", days, clock=lambda: NOW).sweep()


async def test_only_what_nobody_goes_on_with_is_forgotten(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    keep(store, "mqtt/lab/anna/old", 30.5)
    keep(store, "mqtt/lab/anna/young", 29.5)
    keep(store, "mqtt/lab/anna/open", 40)
    store.journal.start(JournalEntry(request_id="r", conversation_id="mqtt/lab/anna/open"))
    keep(store, "mqtt/other/anna/old", 99)
    keep(store, "of the screen", 999, source="screen")
    kept = ["mqtt/lab/anna/open", "mqtt/lab/anna/young", "mqtt/other/anna/old", "of the screen"]
    await sweep(store, 0)
    assert names(store) == sorted([*kept, "mqtt/lab/anna/old"])
    await sweep(store, 30)
    assert names(store) == kept
    assert store.messages("mqtt/lab/anna/old") == []
    assert len(store.messages("mqtt/lab/anna/young")) == 2
    assert caplog.messages == [
        "forgot 1 conversations that were not continued for 30 days",
    ]
    assert store.journal.end("r", FinishReason.STOP)
    await sweep(store, 30)
    assert names(store) == kept[1:]


async def test_it_goes_by_slices_on_another_thread_and_the_file_shrinks(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(110):
        keep(store, f"mqtt/lab/anna/{number}", 31, text="x" * 20_000)
    keep(store, "mqtt/lab/anna/kept", 1)
    store._db.read("PRAGMA wal_checkpoint(TRUNCATE)")
    before = path.stat().st_size
    assert before > 4_000_000
    slices: list[int] = []
    threads: set[threading.Thread] = set()
    forget = store.forget

    def watched(*args: object) -> int:
        threads.add(threading.current_thread())
        slices.append(forget(*args))  # type: ignore[arg-type]
        return slices[-1]

    monkeypatch.setattr(store, "forget", watched)
    await sweep(store, 30)
    assert max(slices) == retention.SLICE <= 5
    assert sum(slices) == 110
    assert threading.current_thread() not in threads
    store._db.read("PRAGMA wal_checkpoint(TRUNCATE)")
    assert path.stat().st_size < before / 20
    assert names(store) == ["mqtt/lab/anna/kept"]


async def test_a_file_of_an_older_version_is_made_to_shrink(path: Path) -> None:
    Store(path).close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("PRAGMA auto_vacuum = NONE")
        db.execute("VACUUM")
    with closing(Store(path)) as store:
        assert store._db.read("PRAGMA auto_vacuum")[0][0] == 2
        assert store._db.read("PRAGMA journal_mode")[0][0] == "wal"


async def test_a_store_that_cannot_be_written_is_told_and_tried_later(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(store, "mqtt/lab/anna/old", 31)

    def fail(*_: object) -> int:
        raise StoreError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(store, "forget", fail)
        await sweep(store, 30)
    assert caplog.messages == ["no room"]
    await sweep(store, 30)
    assert names(store) == []


def test_no_look_for_the_old_reads_all(store: Store) -> None:
    """Deleting looks for the branches that end in each message, too."""
    statements: list[str] = []
    store._db._db.set_trace_callback(statements.append)
    store.forget("mqtt", "mqtt/lab/", 1.0, 20)
    store._db._db.set_trace_callback(None)
    (statement,) = (s for s in statements if "DELETE" in s)
    plan = [row[-1] for row in store._db.read(f"EXPLAIN QUERY PLAN {statement}")]
    assert not [line for line in plan if line.startswith("SCAN")]
    indexes = store._db.read("SELECT name FROM pragma_index_list('conversation')")
    assert {"conversation_by_age", "conversation_by_leaf"} <= {row["name"] for row in indexes}


def test_a_server_forgets_what_is_past_its_time(broker: Mosquitto, tmp_path: Path) -> None:
    with closing(Store(tmp_path / "batchdeck.db")) as store:
        now = (NOW - time.time()) / DAY
        keep(store, "mqtt/default/alice/old", now + 3)
        keep(store, "mqtt/default/alice/young", now + 1)
        with serving(broker.port, tmp_path, retention_days=2) as served, peer(broker.port) as alice:
            served.until(lambda: names(store) == ["mqtt/default/alice/young"])
            alice.ask("1", session_id="old")
            served.accepted(1)
            served.run(lambda: alice.ends("1"))
