"""WordIndex: an index of the words in titles, messages and attachments, in a file beside the
store."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from app.store.database import PAUSE_SECONDS, Database, HinderedError, StoreError
from app.store.query import split
from app.store.rows import read_attachments
from app.system.private import create_file

log = logging.getLogger(__name__)

T = TypeVar("T")

# Another user's chat is found by their name as by its title, because it is shown with both.
TITLE = "iif(source = 'screen', title, user || ' ' || title) AS title"

_SLICE = 200  # messages that are indexed before others may write again

# Of the indexed content. An index of another version is rebuilt.
_VERSION = 1
_WORDS = """
CREATE VIRTUAL TABLE found.words USING fts5 (
    title, content, tokenize = 'unicode61 remove_diacritics 2'
)
"""

_WAITING = f"""
SELECT waiting.number, message.content, message.attachments, {TITLE}
FROM unindexed AS waiting
    LEFT JOIN message ON message.number = waiting.number
        AND (message.role <> 'assistant' OR message.finish_reason IS NOT NULL)
    LEFT JOIN conversation ON conversation.id = message.conversation_id
LIMIT ?
"""


class WordIndex:
    """The table `found.words`, with a row for each message under its number. It has its own
    connection to the store, so that no chat waits while it is read or updated. From any thread;
    threads take turns.

    It is built from the store, and rebuilt if it is missing or damaged. The store records which
    messages have changed since, and those are indexed. A reply in progress is indexed when it has
    ended.

    Args:
        path: of the store.

    Attributes:
        can_be: whether this Python's SQLite has FTS5. Without it only the store is read.

    Raises:
        StoreError: from every method.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.with_name(f"{path.name}-words")
        self._taken: tuple[int, int] | None = None  # its device and inode when opened
        self._db: Database | None = None
        self._turn = threading.RLock()
        self.can_be = has_fts5()

    def close(self) -> None:
        with self._turn:
            if self._db is not None:
                self._db.close()
                self._db = None

    def read(self, query: str, *values: object) -> list[sqlite3.Row]:
        """As `Database.read`."""
        with self._turn:
            return self._opened().read(query, *values)

    def catch_up(self) -> int:
        """Index the changes since the last call; returns the number of messages."""
        return self._over(self._index_changes)

    def over(self, work: Callable[[Database], T]) -> T:
        """Run a function on the index, after indexing the store's changes."""

        def caught_up() -> T:
            self._index_changes()
            return work(self._opened())

        return self._over(caught_up)

    def _over(self, work: Callable[[], T]) -> T:
        """Run a function on the index; if that is damaged, rebuild it first."""
        with self._turn:
            try:
                return work()
            except HinderedError:
                raise
            except StoreError as error:
                log.info("the index of chats is rebuilt: %s", error)
                self._remove()
                return work()

    def _index_changes(self) -> int:
        return sum(self._slices()) if self.can_be else 0

    def _slices(self) -> Iterator[int]:
        """Index the changes, a slice at a time; yields the number of messages of each.

        A transaction over two files may, if the program ends during it, be in the store alone. So a
        second transaction removes the indexed messages from the list of changes, unless they have
        changed meanwhile.
        """
        db = self._opened()
        while True:
            with db.transaction():
                if self._place() != self._taken:
                    raise StoreError(f"{self._file}: another program has rebuilt it")
                rows = db.read(_WAITING, _SLICE)
                for row in rows:
                    db.write("DELETE FROM found.words WHERE rowid = ?", (row["number"],))
                    if row["content"] is not None:
                        text = searched_text(row["content"], row["attachments"])
                        db.write(
                            "INSERT INTO found.words (rowid, title, content) VALUES (?, ?, ?)",
                            (row["number"], split(row["title"]), split(text)),
                        )
            with db.transaction():
                for row in {*rows} & {*db.read(_WAITING, _SLICE)}:
                    db.write("DELETE FROM unindexed WHERE number = ?", (row["number"],))
            yield len(rows)
            if len(rows) < _SLICE:
                return
            time.sleep(PAUSE_SECONDS)

    def _opened(self) -> Database:
        if self._db is not None:
            return self._db
        db = Database(self._path)
        try:
            if self.can_be:
                try:
                    create_file(self._file)
                except OSError as error:
                    text = f"{self._file}: it cannot be opened ({error.strerror or error})"
                    raise HinderedError(text) from None
                self._taken = self._place()
                db.read("ATTACH ? AS found", str(self._file))
                with db.transaction():
                    if db.read("PRAGMA found.user_version")[0][0] != _VERSION:
                        db.write("DROP TABLE IF EXISTS found.words", ())
                        db.write(_WORDS, ())
                        db.write("INSERT OR IGNORE INTO unindexed SELECT number FROM message", ())
                        db.write(f"PRAGMA found.user_version = {_VERSION}", ())
        except StoreError:
            db.close()
            raise
        self._db = db
        return db

    def _remove(self) -> None:
        """Remove the index, unless another program has rebuilt it since it was opened here.

        A writer of the index has the store locked. So no other program uses it meanwhile, and they
        all see afterwards that it is another file.
        """
        self.close()
        try:
            with closing(Database(self._path)) as db, db.transaction():
                if self._place() == self._taken:
                    for end in ("-journal", ""):
                        Path(f"{self._file}{end}").unlink(missing_ok=True)
        except OSError as error:
            text = f"{self._file}: it cannot be removed ({error.strerror or error})"
            raise StoreError(text) from None

    def _place(self) -> tuple[int, int] | None:
        """The index file's device and inode; None if it does not exist."""
        try:
            state = self._file.stat()
        except FileNotFoundError:
            return None
        return state.st_dev, state.st_ino


def searched_text(content: str, attachments: str | None) -> str:
    """The searchable text of a message: its content and its attachments.

    Args:
        attachments: the store's cell; unreadable ones are left out.
    """
    try:
        files = read_attachments(attachments)
    except (ValueError, TypeError, RecursionError) as error:
        log.info("attachments are damaged, and not searched: %s", error)
        return content
    return "\n\n".join((content, *(f"{file.name}:\n{file.text}" for file in files)))


def has_fts5() -> bool:
    """Whether this Python's SQLite can index text."""
    with sqlite3.connect(":memory:") as db:
        return bool(db.execute("SELECT sqlite_compileoption_used('ENABLE_FTS5')").fetchone()[0])
