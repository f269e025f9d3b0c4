"""Database: one SQLite file of ours, opened with care, its errors told as sentences."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

APPLICATION_ID = 0x62646B31  # "bdk1", so that another program's database is told from ours
SCHEMA_VERSION = 1
BUSY_SECONDS = 5.0

_SCHEMA = """
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


class StoreError(Exception):
    """The store cannot be opened, read or written; the message says which file and why."""


class Database:
    """A connection that any thread may use, beside other processes.

    Raises:
        StoreError: from every method too.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._depth = 0
        with self._translated():
            self._db = sqlite3.connect(
                path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
        self._db.row_factory = sqlite3.Row
        try:
            self._set_up()
        except StoreError:
            self._db.close()
            raise

    def close(self) -> None:
        with self._lock, self._translated():
            self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All writes within, or none. May be nested."""
        with self._lock, self._translated():
            if self._depth:
                yield
                return
            self._db.execute("BEGIN IMMEDIATE")
            self._depth += 1
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                # A full disk has rolled back already.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            finally:
                self._depth -= 1

    def write(self, statement: str, values: tuple[object, ...] | Mapping[str, object]) -> None:
        with self.transaction():
            self._db.execute(statement, values)

    def read(self, query: str, *values: object) -> list[sqlite3.Row]:
        with self._lock, self._translated():
            return self._db.execute(query, values).fetchall()

    def _set_up(self) -> None:
        version = self._version()
        with self._translated():
            # Readers go on beside a writer; a commit survives a crash of the process, and all but
            # the last ones a crash of the machine.
            self._write_ahead()
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute("PRAGMA foreign_keys = ON")
        if version == 0:
            self._create()

    def _write_ahead(self) -> None:
        # SQLite does not wait for its lock here, whatever the time-out: where eight opened a new
        # file at once, 7 of 7,200 failed.
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _version(self) -> int:
        """The schema's version; 0 where there is none yet."""
        # One statement sees one state, also while another process creates the tables.
        version, owner, tables = self.read(
            "SELECT user_version, application_id, (SELECT count(*) FROM sqlite_schema)"
            " FROM pragma_user_version, pragma_application_id"
        )[0]
        if tables and owner != APPLICATION_ID:
            raise StoreError(f"{self.path} is another program's database; set another data_dir")
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"{self.path} was written by a newer batchdeck (schema {version}, this one knows"
                f" {SCHEMA_VERSION}); update batchdeck or set another data_dir"
            )
        return int(version)

    def _create(self) -> None:
        with self.transaction():
            # Another process may have been first.
            if self._version():
                return
            # One by one: executescript would commit the transaction.
            for statement in _SCHEMA.split(";")[:-1]:
                self._db.execute(statement)
            self._db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            text = str(error)
            if "locked" in text:
                why = f"another program has had it locked for {BUSY_SECONDS:g} seconds"
            elif "readonly" in text or "unable to open" in text:
                why = f"it cannot be written ({text})"
            elif "full" in text:
                why = f"there is no room for it ({text})"
            elif "FOREIGN KEY" in text:
                why = "another program deleted the conversation that this belongs to"
            elif "not a database" in text or "malformed" in text:
                why = f"it is damaged ({text}); move it away to start anew"
            else:
                why = text
            raise StoreError(f"{self.path}: {why}") from error
