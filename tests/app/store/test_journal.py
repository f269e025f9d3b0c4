from __future__ import annotations

import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.store.database import StoreError
from app.store.journal import RESTARTED, JournalEntry
from app.store.store import Store
from engine.api.errors import ErrorInfo
from engine.api.lifecycle import FinishReason


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    store = Store(path)
    yield store
    store.close()


def begin(store: Store, *request_ids: str, source: str = "mqtt") -> None:
    for request_id in request_ids:
        store.journal.start(JournalEntry(request_id=request_id, source=source))


def end(store: Store, *request_ids: str) -> None:
    for request_id in request_ids:
        assert store.journal.end(request_id, FinishReason.STOP, ending=f"end of {request_id}")


def ids(entries: list[JournalEntry]) -> list[str]:
    return [entry.request_id for entry in entries]


def test_each_attempt_keeps_its_first_end(store: Store) -> None:
    first = JournalEntry(
        request_id="r", user="u", source="mqtt", body="{}", digest="d", reply_to="t"
    )
    store.journal.start(first)
    assert store.journal.entry("r") == first
    with pytest.raises(StoreError, match="UNIQUE"):
        store.journal.start(JournalEntry(request_id="r"))
    broke = ErrorInfo("engine_error", "broke", "param")
    assert store.journal.end("r", FinishReason.ERROR, broke, ending="E")
    assert not store.journal.end("r", FinishReason.STOP, ending="another")
    store.journal.start(JournalEntry(request_id="r", attempt=2))
    assert store.journal.end("r", FinishReason.STOP, attempt=2)
    assert not store.journal.end("r", FinishReason.STOP, attempt=3)
    assert not store.journal.end("never began", FinishReason.STOP)
    ended, second = store.journal.entry("r"), store.journal.entry("r", attempt=2)
    assert ended is not None
    assert second is not None
    assert (ended.user, ended.source, ended.body) == ("u", "mqtt", "{}")
    assert (ended.digest, ended.reply_to, ended.told_at) == ("d", "t", None)
    assert (ended.reason, ended.error, ended.ending) == (FinishReason.ERROR, broke, "E")
    assert ended.ended_at is not None
    assert ended.ended_at >= ended.accepted_at
    assert (second.reason, second.error, second.ending) == (FinishReason.STOP, None, None)
    assert store.journal.entry("other") is None


def test_the_last_attempt_is_the_newest(store: Store) -> None:
    assert store.journal.last("r") is None
    for attempt in (1, 2, 3, 10):
        store.journal.start(JournalEntry(request_id="r", attempt=attempt))
        begin(store, f"r{attempt}")
        last = store.journal.last("r")
        assert last is not None
        assert (last.request_id, last.attempt) == ("r", attempt)


def test_owners_are_told_in_the_order_of_the_ends(store: Store) -> None:
    begin(store, "p/u/1", "p/u/2", "p/v/3", "p/u/open")
    begin(store, "p/u/screen", source="screen")
    end(store, "p/v/3", "p/u/2", "p/u/1", "p/u/screen")
    assert ids(store.journal.undelivered("mqtt", "p/")) == ["p/v/3", "p/u/2", "p/u/1"]
    assert ids(store.journal.undelivered("mqtt", "p/u/")) == ["p/u/2", "p/u/1"]
    assert ids(store.journal.undelivered("mqtt", "")) == ["p/v/3", "p/u/2", "p/u/1"]
    before = time.time()
    store.journal.mark_delivered([("p/u/2", 1), ("p/u/open", 1), ("p/u/unknown", 1), ("p/v/3", 2)])
    assert ids(store.journal.undelivered("mqtt", "p/")) == ["p/v/3", "p/u/1"]
    told, not_ended = store.journal.entry("p/u/2"), store.journal.entry("p/u/open")
    assert told is not None
    assert told.told_at is not None
    assert told.told_at >= before
    assert not_ended is not None
    assert not_ended.told_at is None
    store.journal.mark_delivered([("p/u/2", 1)])
    assert store.journal.entry("p/u/2") == told


def test_only_what_is_told_and_old_is_forgotten(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(store, "told", "untold", "young", "open")
    begin(store, "screen", source="screen")
    monkeypatch.setattr("app.store.journal.time.time", lambda: 100.0)
    end(store, "told", "untold", "screen")
    monkeypatch.setattr("app.store.journal.time.time", lambda: 200.0)
    end(store, "young")
    store.journal.mark_delivered([("told", 1), ("young", 1), ("screen", 1)])
    assert store.journal.forget("mqtt", 100.0) == 0
    assert store.journal.forget("mqtt", 200.0) == 1
    kept = ("untold", "young", "open", "screen")
    assert [store.journal.entry(r) is not None for r in ("told", *kept)] == [False] + [True] * 4
    begin(store, "told")


# Levels of topics, next to what sorts around them.
_names = st.text(st.sampled_from("a/b0~é\U0001f600\ud7ff￿*%_?["), max_size=6)


@given(names=st.sets(_names, max_size=12), prefix=_names)
def test_untold_are_those_with_the_prefix(
    tmp_path_factory: pytest.TempPathFactory, names: set[str], prefix: str
) -> None:
    with closing(Store(tmp_path_factory.mktemp("journal") / "store.db")) as store:
        begin(store, *names)
        end(store, *names)
        untold = store.journal.undelivered("mqtt", prefix)
        assert set(ids(untold)) == {name for name in names if name.startswith(prefix)}


_LIVES = """
import os, signal, sys
from pathlib import Path
from app.store.journal import JournalEntry
from app.store.store import Store
from engine.batch.plan import FinishReason
store = Store(Path(sys.argv[1]))
for name in ("p/ended", "p/open"):
    store.journal.start(JournalEntry(request_id=name, source="mqtt"))
store.journal.end("p/ended", FinishReason.STOP, ending="E")
print("written", flush=True)
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_live_process_tells_its_own_and_a_dead_ones_are_told_by_the_next(path: Path) -> None:
    command = [sys.executable, "-c", _LIVES, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        beside = Store(path)
        begin(beside, "p/mine")
        end(beside, "p/mine")
        assert ids(beside.journal.undelivered("mqtt", "p/")) == ["p/mine"]
        process.stdin.close()
        assert process.wait() == -signal.SIGKILL
    # What it had ended can be told now; what it had not is ended by whoever opens the store next.
    assert ids(beside.journal.undelivered("mqtt", "p/")) == ["p/ended", "p/mine"]
    after = Store(path)
    ended, orphan = after.journal.undelivered("mqtt", "p/")
    assert (ended.request_id, ended.ending) == ("p/ended", "E")
    assert (orphan.request_id, orphan.error, orphan.ending) == ("p/open", RESTARTED, None)
    beside.close()
    assert ids(after.journal.undelivered("mqtt", "p/")) == ["p/ended", "p/mine", "p/open"]
    after.close()


def test_a_dead_process_is_adopted_once_and_a_live_one_is_not(path: Path) -> None:
    with ExitStack() as at_the_end:
        one, two = (at_the_end.enter_context(closing(Store(path))) for _ in "12")
        command = [sys.executable, "-c", _LIVES, str(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == b"written\n"
            assert one.journal.adopt("mqtt", "p/") == 0
            process.stdin.close()
            process.wait()
        assert one.journal.adopt("mqtt", "q/") == 0
        assert one.journal.adopt("mqtt", "p/") == 2
        assert one.journal.adopt("mqtt", "p/") == two.journal.adopt("mqtt", "p/") == 0
        assert ids(two.journal.undelivered("mqtt", "p/")) == []
        assert ids(one.journal.undelivered("mqtt", "p/")) == ["p/ended", "p/open"]


def test_a_lease_that_cannot_be_looked_at_is_named(store: Store, path: Path) -> None:
    begin(store, "r")
    end(store, "r")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE request SET lease = 'folder'")
    (path.with_name("store.db-leases") / "folder.lease").mkdir()
    with pytest.raises(StoreError, match=r"store\.db-leases: a lease cannot be checked \(Is a"):
        store.journal.undelivered("mqtt", "")


def test_no_look_into_the_journal_reads_all_of_it(store: Store, path: Path) -> None:
    """Each goes by an index to the rows that it gives, as SQLite states its plan."""
    statements: list[str] = []
    store._db._db.set_trace_callback(statements.append)
    begin(store, "r")
    end(store, "r")
    store.journal.entry("r")
    store.journal.last("r")
    store.journal.undelivered("mqtt", "r")
    store.journal.adopt("mqtt", "r")
    store.journal.mark_delivered([("r", 1)])
    store.journal.forget("mqtt", 1.0)
    store._db._db.set_trace_callback(None)
    looks = [s for s in statements if re.match(r"\s*(SELECT|UPDATE|DELETE)", s)]
    assert len(looks) == 8
    with closing(sqlite3.connect(path)) as db:
        plans = [
            "\n".join(row[-1] for row in db.execute(f"EXPLAIN QUERY PLAN {look}")) for look in looks
        ]
    by_key = ("SEARCH", "sqlite_autoindex_request_1")
    assert [re.findall(r"(?m)^(\w+) request USING.* INDEX (\w+)", plan) for plan in plans] == [
        [by_key],  # end
        [by_key],  # entry
        [by_key],  # last
        [("SEARCH", "request_untold")],
        [("SCAN", "request_unfinished")],  # adopt: those that have not ended, and only they
        [("SEARCH", "request_untold")],  # adopt
        [by_key],  # mark_delivered
        [by_key, ("SEARCH", "request_told")],
    ]
