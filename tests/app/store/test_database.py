from __future__ import annotations

import gc
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from app.store.conversation import Conversation, Message
from app.store.database import APPLICATION_ID, Database, StoreError
from app.store.journal import RESTARTED, JournalEntry
from app.store.migrations import SCHEMA_VERSION
from app.store.store import Store
from engine.api.lifecycle import FinishReason
from engine.api.stream import Context

# What version 1 wrote.
SCHEMA_1 = """
CREATE TABLE conversation (
    id TEXT PRIMARY KEY,
    title TEXT NOT NULL,
    system TEXT NOT NULL,
    sampling TEXT NOT NULL,
    user TEXT NOT NULL,
    source TEXT NOT NULL,
    created REAL NOT NULL,
    updated REAL NOT NULL,
    leaf TEXT REFERENCES message (id) DEFERRABLE INITIALLY DEFERRED,
    is_open INTEGER NOT NULL
) STRICT;
CREATE TABLE message (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    conversation_id TEXT NOT NULL REFERENCES conversation (id) ON DELETE CASCADE,
    parent_id TEXT REFERENCES message (id) DEFERRABLE INITIALLY DEFERRED,
    role TEXT NOT NULL,
    content TEXT NOT NULL,
    created REAL NOT NULL,
    model TEXT NOT NULL,
    request_id TEXT,
    finish_reason TEXT,
    error TEXT,
    usage TEXT,
    timings TEXT,
    context BLOB,
    context_start INTEGER,
    context_messages INTEGER,
    model_key TEXT
) STRICT;
CREATE INDEX message_by_conversation ON message (conversation_id);
CREATE INDEX message_by_parent ON message (parent_id);
CREATE INDEX message_by_request ON message (request_id);
CREATE TABLE request (
    request_id TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    user TEXT NOT NULL,
    conversation_id TEXT REFERENCES conversation (id) ON DELETE SET NULL,
    source TEXT NOT NULL,
    body TEXT NOT NULL,
    lease TEXT NOT NULL,
    accepted_at REAL NOT NULL,
    ended_at REAL,
    reason TEXT,
    error TEXT,
    PRIMARY KEY (request_id, attempt)
) STRICT;
CREATE INDEX request_by_conversation ON request (conversation_id);
CREATE INDEX request_unfinished ON request (lease) WHERE ended_at IS NULL;
"""

CONTENT_1 = """
BEGIN;
INSERT INTO conversation VALUES
    ('c', 'One', 'Be brief.', '{"top_k": 3}', 'local', 'screen', 1.0, 2.0, 'm2', 1);
INSERT INTO message VALUES
    (1, 'm1', 'c', NULL, 'user', 'Hi', 1.0, '', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL),
    (2, 'm2', 'c', 'm1', 'assistant', 'Hello', 2.0, 'tiny', 'r1', 'stop', NULL, NULL, NULL,
        x'0100000002000000', 0, 2, 'key'),
    (3, 'm3', 'c', 'm1', 'assistant', 'Hel', 3.0, 'tiny', 'r2', NULL, NULL, NULL, NULL, NULL, NULL,
        NULL, NULL);
INSERT INTO request VALUES
    ('r1', 1, 'local', 'c', 'screen', '{}', 'gone', 1.0, 2.0, 'stop', NULL),
    ('r2', 1, 'local', 'c', 'screen', '{}', 'gone', 3.0, NULL, NULL, NULL);
COMMIT;
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def write_version_1(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript(SCHEMA_1 + CONTENT_1)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute("PRAGMA user_version = 1")


def shape(path: Path) -> tuple[int, dict[str, list[tuple[object, ...]]], set[str]]:
    """Version, columns of the tables, and the indexes."""
    with closing(sqlite3.connect(path)) as db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        names = db.execute("SELECT type, name FROM sqlite_schema").fetchall()
        tables = {
            name: db.execute(f"PRAGMA table_info({name})").fetchall()
            for kind, name in names
            if kind == "table"
        }
        return version, tables, {name for kind, name in names if kind == "index"}


def test_a_file_of_version_1_is_brought_up_to_date_with_all_that_is_in_it(path: Path) -> None:
    write_version_1(path)
    store = Store(path)
    (conversation,) = store.conversations(open_only=True)
    assert conversation == Conversation(
        id="c",
        title="One",
        is_named=True,
        system="Be brief.",
        sampling={"top_k": 3},
        number=1,
        created=1.0,
        updated=2.0,
        leaf="m2",
    )
    assert [m.content for m in store.branch("m2")] == ["Hi", "Hello"]
    assert store.contexts.of("m2") == ("m2", Context("key", (1, 2), 2))
    finished, orphan = store.journal.entry("r1"), store.journal.entry("r2")
    assert finished == JournalEntry(
        request_id="r1",
        conversation_id="c",
        body="{}",
        accepted_at=1.0,
        ended_at=2.0,
        reason=FinishReason.STOP,
    )
    assert orphan is not None
    assert (orphan.error, orphan.ending, orphan.told_at) == (RESTARTED, None, None)
    store.journal.start(JournalEntry(request_id="r3", source="mqtt", digest="d", reply_to="t"))
    assert store.journal.end("r3", FinishReason.STOP, ending="E")
    store.journal.mark_delivered([("r3", 1)])
    entry = store.journal.entry("r3")
    assert entry is not None
    assert (entry.digest, entry.reply_to, entry.ending) == ("d", "t", "E")
    assert entry.told_at is not None
    store.close()
    new = path.with_name("new.db")
    Store(new).close()
    assert shape(path) == shape(new)
    assert shape(path)[0] == SCHEMA_VERSION


_OPENS = """
import sys
from pathlib import Path
from app.store.store import Store
print("ready", flush=True)
sys.stdin.readline()
store = Store(Path(sys.argv[1]))
print(len(store.messages("c")), flush=True)
store.close()
"""


def test_two_processes_may_bring_a_file_up_to_date_at_once(path: Path) -> None:
    write_version_1(path)
    command = [sys.executable, "-c", _OPENS, str(path)]
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as one,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as two,
    ):
        for process in (one, two):
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in (one, two):
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        assert [process.communicate(timeout=30)[0] for process in (one, two)] == ["3\n", "3\n"]
    assert shape(path)[0] == SCHEMA_VERSION


def test_an_upgrade_that_fails_changes_nothing(path: Path) -> None:
    write_version_1(path)
    with closing(sqlite3.connect(path)) as db:
        # The name of an index that comes last.
        db.execute("CREATE TABLE request_told (x)")
    before = shape(path)
    with pytest.raises(StoreError, match=r"store\.db: there is already a table named request_told"):
        Database(path)
    assert shape(path) == before


def values(db: Database) -> list[int]:
    return [row["x"] for row in db.read("SELECT x FROM t ORDER BY x")]


@pytest.fixture
def db(path: Path) -> Database:
    db = Database(path)
    db.write("CREATE TABLE t (x INTEGER UNIQUE)", ())
    return db


def put(db: Database, *xs: int, on_commit: Callable[[], None] = lambda: None) -> None:
    """Raises StoreError for one that is there already, after those before it were written."""
    with db.transaction():
        db.on_commit(on_commit)
        for x in xs:
            db.write("INSERT INTO t VALUES (?)", (x,))


def put_in_vain(db: Database) -> None:
    with db.transaction():
        put(db, 5)
        with pytest.raises(StoreError, match="UNIQUE"):
            put(db, 6, 1)
        put(db, 7)
        raise LookupError


def test_an_inner_transaction_is_taken_back_alone(db: Database) -> None:
    with db.transaction():
        put(db, 1)
        with db.transaction():
            put(db, 2)
            with pytest.raises(StoreError, match="UNIQUE"):
                put(db, 3, 4, 1)
            put(db, 4)
        with pytest.raises(LookupError):
            put_in_vain(db)
        put(db, 3)
    assert values(db) == [1, 2, 3, 4]
    with pytest.raises(StoreError, match="UNIQUE"):
        put(db, 5, 1)
    with pytest.raises(StoreError, match="UNIQUE"):
        db.write_all("INSERT INTO t VALUES (?)", ((x,) for x in (7, 8, 1)))
    assert values(db) == [1, 2, 3, 4]
    db.close()


def test_what_waits_for_the_commit_is_called_after_it_and_only_then(db: Database) -> None:
    called: list[str] = []
    with db.transaction():
        put(db, 1, on_commit=lambda: called.append(f"inner {values(db)}"))
        with pytest.raises(StoreError):
            put(db, 1, on_commit=lambda: called.append("taken back"))
        db.on_commit(lambda: called.append("outer"))
        put(db, 2)
        assert called == []
    assert called == ["inner [1, 2]", "outer"]
    with pytest.raises(StoreError):
        put(db, 1, on_commit=lambda: called.append("taken back"))
    put(db, 3)
    assert called == ["inner [1, 2]", "outer"]
    db.close()


def lose(db: Database, then: Callable[[], None]) -> None:
    """A transaction that ends as SQLite ends it where a disk fails, and what follows in it."""
    with db.transaction():
        put(db, 1)
        db.write("ROLLBACK", ())
        then()


@pytest.mark.parametrize(
    "then",
    [
        lambda db: None,
        lambda db: put(db, 2),
        lambda db: db.write("INSERT INTO t VALUES (2)", ()),
    ],
    ids=["its end", "an inner transaction", "a write"],
)
def test_nothing_follows_what_the_disk_took_back(
    db: Database, then: Callable[[Database], None]
) -> None:
    with pytest.raises(StoreError, match="has rolled back the whole transaction"):
        lose(db, lambda: then(db))
    assert values(db) == []
    put(db, 3)
    assert values(db) == [3]
    db.close()


@pytest.mark.parametrize(
    ("whole", "damaged"),
    [
        (b"NOT NULL", b"NOT\xffNULL"),  # SQLite quotes it, and Python cannot read that
        (b"title TEXT", b"t\x9atle TEXT"),
        (b"title TEXT", b"tiale TEXT"),  # another table than ours, and a sound one
        (b"parent_id TEXT REFERENCES message", b"parent_id TEXT REFERENCES mefsage"),
    ],
)
def test_a_damaged_byte_in_the_schema_is_told_as_damage(
    path: Path, whole: bytes, damaged: bytes
) -> None:
    Store(path).close()
    content = path.read_bytes()
    assert whole in content
    path.write_bytes(content.replace(whole, damaged, 1))
    with pytest.raises(StoreError, match=r"^[^(]+: it is damaged \(.+\); move it away to start"):
        write_a_message(path)


def test_rows_that_are_visited_are_not_kept(path: Path) -> None:
    def count_rows() -> int:
        return sum(isinstance(one, sqlite3.Row) for one in gc.get_objects())

    with closing(Database(path)) as db:
        numbers: list[int] = []
        alive: list[int] = []

        def take(row: sqlite3.Row) -> None:
            numbers.append(row["value"])
            alive.append(count_rows())

        before = count_rows()
        db.visit("SELECT value FROM json_each(:list)", {"list": "[1, 2, 3]"}, take)
    assert numbers == [1, 2, 3]
    # SQLite's next row may be read before the last one goes.
    assert max(alive) <= before + 2


def write_a_message(path: Path) -> None:
    with closing(Store(path)) as store:
        store.save_conversation(Conversation(id="c"))
        store.save_message(Message(conversation_id="c", parent_id=None, role="user", content=""))
