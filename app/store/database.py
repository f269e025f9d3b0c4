"""Database: one of our SQLite files, opened with care, with errors as sentences."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

from app.store.migrations import MIGRATIONS, SCHEMA_VERSION

log = logging.getLogger(__name__)

T = TypeVar("T")

APPLICATION_ID = 0x62646B31  # "bdk1", which distinguishes our databases from others
BUSY_SECONDS = 5.0
# A commit survives a crash of the process, and all but the last ones a crash of the machine.
SYNCHRONOUS = "NORMAL"
# Long writes pause so long between transactions. A connection that waits for SQLite's lock polls it
# about every 25 ms, and would not find it free: the interface froze for a second during an import
# of 10,000 messages.
PAUSE_SECONDS = 0.03

# Large writes leave so much of the disk free, so that deletion stays possible: SQLite writes what
# it deletes to its log first.
DISK_LEFT = 64 << 20
# Other programs may use that space. So a reserve file of this size is kept, and removed when
# nothing can be deleted any more: SQLite's log has up to 4.2 MiB, half of which may be new to the
# database.
RESERVE = 8 << 20

_INCREMENTAL = "PRAGMA auto_vacuum = INCREMENTAL"
_IS_INCREMENTAL = 2

# Tables and indexes with their columns, and for tables with the columns' types.
_SCHEMA = """
SELECT entry.name, part.name, part.type FROM sqlite_schema AS entry,
    pragma_table_info(entry.name) AS part WHERE entry.type = 'table'
UNION ALL
SELECT entry.name, part.name, '' FROM sqlite_schema AS entry,
    pragma_index_info(entry.name) AS part WHERE entry.type = 'index'
"""

_SIGNS_OF_DAMAGE = (
    "not a database",
    "malformed",
    "Could not decode",
    "no such table",
    "no such column",
    "foreign key mismatch",
)

# How a transaction begins, commits and rolls back: the outermost one, and a nested one. A name
# means the innermost savepoint that has it.
_OUTER = ("BEGIN IMMEDIATE", "COMMIT", ("ROLLBACK",))
_INNER = ("SAVEPOINT inner", "RELEASE inner", ("ROLLBACK TO inner", "RELEASE inner"))


class StoreError(Exception):
    """The store cannot be opened, read or written; the message says which file and why."""


class HinderedError(StoreError):
    """It is locked, read-only, or the disk is full: the file itself is intact."""


class FullError(HinderedError):
    """The disk is full."""


class DeletedError(StoreError):
    """Another program deleted the row that this belongs to; retrying does not help."""


class DamagedError(StoreError):
    """A cell has unreadable content; the rest of the store can be read."""


class Database:
    """A connection that any thread may use, beside other processes.

    Args:
        busy_seconds: how long to wait for another connection's lock; None is `BUSY_SECONDS`.

    Raises:
        StoreError: from every method too.
    """

    def __init__(self, path: Path, busy_seconds: float | None = None) -> None:
        self.path = path
        self._busy_seconds = BUSY_SECONDS if busy_seconds is None else busy_seconds
        self._lock = threading.RLock()
        self._depth = 0
        self._committed: list[Callable[[], object]] = []
        with self._translated():
            self._db = sqlite3.connect(
                path, timeout=self._busy_seconds, isolation_level=None, check_same_thread=False
            )
        self._db.row_factory = sqlite3.Row
        # A damaged character must not make the rest unreadable.
        self._db.text_factory = lambda data: data.decode("utf-8", "replace")
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
        """Commit all writes within, or none.

        Transactions nest: an inner one that raises is rolled back alone, and the outer one may go
        on.
        """
        with self._lock, self._translated():
            self._check_whole()
            begin, commit, roll_back = _INNER if self._depth else _OUTER
            num_calls = len(self._committed)
            self._db.execute(begin)
            self._depth += 1
            try:
                yield
                self._check_whole()
                self._db.execute(commit)
            except BaseException:
                del self._committed[num_calls:]
                # A disk error may have rolled back everything already.
                if self._db.in_transaction:
                    for statement in roll_back:
                        self._db.execute(statement)
                raise
            finally:
                self._depth -= 1
            if not self._depth:
                committed, self._committed = self._committed, []
                for call in committed:
                    call()

    def on_commit(self, call: Callable[[], object]) -> None:
        """Call a function once the outermost transaction is committed; only within a
        transaction."""
        self._committed.append(call)

    def write(self, statement: str, values: tuple[object, ...] | Mapping[str, object]) -> int:
        """Execute a statement; returns the number of changed rows."""
        with self._lock, self._translated():
            self._check_whole()
            return self._db.execute(statement, values).rowcount

    def write_all(self, statement: str, values: Iterable[tuple[object, ...]]) -> None:
        """Execute a statement once for each of these values, all or none."""
        with self.transaction():
            self._db.executemany(statement, values)

    def check_disk(self, num_bytes: int) -> None:
        """Check that the disk has so much free space, and some more to delete it again.

        Raises:
            FullError: it has not.
        """
        try:
            free = shutil.disk_usage(self.path.parent).free
        except OSError as error:
            raise StoreError(f"{self.path}: it cannot be found ({error.strerror})") from error
        if free < num_bytes + DISK_LEFT:
            why = f"the disk is full (its last {DISK_LEFT} bytes stay free)"
            raise FullError(f"{self.path}: {why}")
        self._create_reserve()

    def removing(self, work: Callable[[], T]) -> T:
        """Run a deletion, on a full disk too: in the space of the reserve, if there is one.
        `check_disk` restores the reserve once there is space."""
        try:
            return work()
        except FullError:
            if self._depth or not self._reserve.exists():
                raise
            log.warning("%s: the disk is full; the reserve is used to delete", self.path)
            self._reserve.unlink(missing_ok=True)
            return work()

    @property
    def _reserve(self) -> Path:
        return self.path.with_name(f"{self.path.name}-reserve")

    def _create_reserve(self) -> None:
        if self._reserve.exists():
            return
        try:
            # Under another name first: a truncated file would count as the reserve.
            part = self._reserve.with_name(f"{self._reserve.name}-part")
            part.write_bytes(bytes(RESERVE))
            part.replace(self._reserve)
        except OSError as error:
            log.warning("%s cannot be reserved: %s", self._reserve, error.strerror)

    def shrink(self, pages: int) -> int:
        """Return up to so many free pages to the system; not within a transaction.

        Returns:
            the number of pages; the file is smaller once SQLite has copied its log into it.
        """
        (before,) = self.read("PRAGMA freelist_count")[0]
        self.removing(lambda: self._vacuum(pages))
        (after,) = self.read("PRAGMA freelist_count")[0]
        return int(before - after)

    def _vacuum(self, pages: int) -> None:
        with self._lock, self._translated():
            # It is one step a page, and `execute` makes only one.
            self._db.executescript(f"PRAGMA incremental_vacuum({pages})")

    def read(self, query: str, *values: object) -> list[sqlite3.Row]:
        with self._lock, self._translated():
            return self._db.execute(query, values).fetchall()

    def visit(
        self, query: str, values: Mapping[str, object], take: Callable[[sqlite3.Row], object]
    ) -> None:
        """Pass rows to `take` one after the other, without a list of them.

        Python's garbage collector counts rows: 10,000 of them at once trigger a full collection,
        during which no thread runs.
        """
        with self._lock, self._translated():
            for row in self._db.execute(query, values):
                take(row)

    @contextmanager
    def decoding(self, what: str) -> Iterator[None]:
        """Report errors as damage while cells are decoded.

        Args:
            what: the owner of the cells, for the message.

        Raises:
            DamagedError: one of them has unreadable content.
        """
        try:
            yield
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            text = f"{what} is damaged ({type(error).__name__}: {error})"
            raise DamagedError(f"{self.path}: {text}; everything else can be read") from error

    def _set_up(self) -> None:
        version = self._version()
        with self._translated():
            self._db.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
            if version == 0:
                # Only for a new file: it must be set before anything else.
                self._db.execute(_INCREMENTAL)
            # Readers run beside a writer.
            self._write_ahead()
            self._db.execute("PRAGMA foreign_keys = ON")
        if version < SCHEMA_VERSION:
            self._upgrade()
        self._check_schema()
        self._be_shrinkable()

    def _write_ahead(self) -> None:
        # SQLite does not wait for its lock here, whatever the timeout: when eight processes opened
        # a new file at once, 7 of 7,200 failed.
        deadline = time.monotonic() + self._busy_seconds
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _version(self) -> int:
        """The schema's version; 0 if there is none yet."""
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

    def _upgrade(self) -> None:
        with self.transaction():
            # Another process may have been first.
            for migration in MIGRATIONS[self._version() :]:
                # One by one: executescript would commit the transaction.
                for statement in _statements(migration):
                    self._db.execute(statement)
            self._db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _be_shrinkable(self) -> None:
        """Rewrite a file of an older version, which never shrinks, once."""
        if self.read("PRAGMA auto_vacuum")[0][0] == _IS_INCREMENTAL:
            return
        try:
            self.read(_INCREMENTAL)
            self.read("VACUUM")
        except StoreError as error:
            # Another program is doing it, or the disk has no space for a copy: retry at the next
            # start.
            log.info("the file cannot shrink when chats are deleted: %s", error)

    def _check_schema(self) -> None:
        """Check the tables: a damaged byte may have changed the schema, which only a query would
        show."""
        if not _tables() <= {tuple(row) for row in self.read(_SCHEMA)}:
            raise StoreError(f"{self.path}: {_damaged('its tables are not those of batchdeck')}")

    def _check_whole(self) -> None:
        """Check that the transaction is still open; otherwise later writes would be stored without
        earlier ones."""
        if self._depth and not self._db.in_transaction:
            raise StoreError(f"{self.path}: an earlier error has rolled back the whole transaction")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            text = str(error)
            kind: type[StoreError] = HinderedError
            if "locked" in text:
                why = f"another program has had it locked for {self._busy_seconds:g} seconds"
            elif "readonly" in text or "unable to open" in text:
                why = f"it cannot be written ({text})"
            elif "full" in text:
                kind = FullError
                why = f"the disk is full ({text})"
            elif "FOREIGN KEY" in text or "the chat is deleted" in text:
                kind = DeletedError
                why = "another program deleted the chat that this belongs to"
            else:
                kind = StoreError
                why = _damaged(text) if any(s in text for s in _SIGNS_OF_DAMAGE) else text
            raise kind(f"{self.path}: {why}") from error
        except UnicodeDecodeError as error:
            # SQLite's message quotes the schema, and sqlite3 cannot decode that, or a column's
            # name.
            text = error.object.decode("utf-8", "backslashreplace")
            raise StoreError(f"{self.path}: {_damaged(text)}") from error


@cache
def _tables() -> set[tuple[str, str, str]]:
    """Our tables, in the form of `_SCHEMA`."""
    with closing(sqlite3.connect(":memory:")) as ours:
        ours.executescript("".join(MIGRATIONS))
        return set(ours.execute(_SCHEMA))


def _statements(script: str) -> Iterator[str]:
    """The statements of a script one by one; those of a trigger belong to one."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _damaged(how: str) -> str:
    return f"it is damaged ({how}); move it away to start anew"
