"""Search: finds chats by the words of their titles and messages."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from app.store.conversation import Conversation
from app.store.database import (
    PAUSE_SECONDS,
    DamagedError,
    Database,
    HinderedError,
    StoreError,
)
from app.store.private import make_file
from app.store.query import Query, split
from app.store.rows import read_conversation

log = logging.getLogger(__name__)

T = TypeVar("T")

MOST = 100  # chats that are told of one query
TITLE_WEIGHT = 10.0
_SLICE = 200  # messages that are taken in before others may write again

_WORDS = """
CREATE VIRTUAL TABLE IF NOT EXISTS found.words USING fts5 (
    title, content, tokenize = 'unicode61 remove_diacritics 2'
)
"""

# A chat of somebody else is found by their name as by its title, for it is shown with both.
_TITLE = "iif(source = 'screen', title, user || ' ' || title) AS title"

_WAITING = f"""
SELECT waiting.number, message.content, {_TITLE}
FROM unindexed AS waiting
    LEFT JOIN message ON message.number = waiting.number
        AND (message.role <> 'assistant' OR message.finish_reason IS NOT NULL)
    LEFT JOIN conversation ON conversation.id = message.conversation_id
LIMIT ?
"""

_FILTERS = """
    conversation.deleted_at IS NULL
    AND (:archived OR NOT conversation.is_archived)
    AND (:source = '' OR conversation.source = :source)
    AND (:model = '' OR conversation.id IN (
        SELECT conversation_id FROM message WHERE instr(lower(model), :model)
    ))
"""

# Scores that differ by less than a tenth are equal; then what is newer comes first.
_FIND = f"""
SELECT words.rowid AS number, conversation.id
FROM found.words
    JOIN message ON message.number = words.rowid
    JOIN conversation ON conversation.id = message.conversation_id
WHERE words MATCH :match AND {_FILTERS}
    AND (:after IS NULL OR message.created >= :after)
    AND (:before IS NULL OR message.created < :before)
ORDER BY round(bm25(words, {TITLE_WEIGHT}, 1.0), 1), message.created DESC
"""

_RECENT = f"""
SELECT message.number, conversation.id, {_TITLE}
FROM conversation LEFT JOIN message ON message.id = conversation.leaf
WHERE {_FILTERS}
    AND (:after IS NULL OR conversation.updated >= :after)
    AND (:before IS NULL OR conversation.updated < :before)
ORDER BY conversation.updated DESC
"""


@dataclass(frozen=True, slots=True)
class Hit:
    """A message in which all words are.

    Attributes:
        created: seconds since the epoch.
    """

    message_id: str
    role: str
    model: str
    created: float
    content: str


@dataclass(frozen=True, slots=True)
class Found:
    """A chat that was found.

    Attributes:
        model: that wrote its last reply; empty if none did.
        numbers: of the messages in which all words are, the best first; without words that of the
            last message, if there is one.
        best: the first of these; None if there is none.
    """

    chat: Conversation
    model: str
    numbers: tuple[int, ...]
    best: Hit | None


class Search:
    """An index of words beside the store, in a file of its own, over a connection of its own: no
    chat waits while it reads or is brought up to date. From any thread; they take turns.

    The index is made of the store, and anew where it is missing or damaged. The store notes which
    messages have changed since, and those are taken in before chats are found. A reply that is
    being made is taken in when it has ended.

    Args:
        path: of the store.

    Attributes:
        has_index: whether this Python's SQLite has FTS5. Without it titles alone are searched.

    Raises:
        StoreError: from every method.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.with_name(f"{path.name}-words")
        self._taken: tuple[int, int] | None = None  # which file that was when it was opened
        self._db: Database | None = None
        self._turn = threading.RLock()
        self.has_index = has_fts5()

    def close(self) -> None:
        with self._turn:
            if self._db is not None:
                self._db.close()
                self._db = None

    def catch_up(self) -> int:
        """Take in what has changed since; returns how many messages that were."""
        return self._over_index(self._take_in) if self.has_index else 0

    def find(self, query: Query) -> list[Found]:
        """Chats with all these words in their title or in one message, as the store has them now,
        the best first; without words the last used first."""

        def find() -> list[Found]:
            if self.has_index:
                self._take_in()
            return self._find(query)

        return self._over_index(find)

    def hit(self, number: int) -> Hit | None:
        """The message of a number; None if it is gone."""
        with self._turn:
            rows = self._opened().read(
                "SELECT id, role, model, created, content FROM message WHERE number = ?", number
            )
        return Hit(*rows[0]) if rows else None

    def _over_index(self, work: Callable[[], T]) -> T:
        """Do something over the index; if it is damaged, over one that is made anew."""
        with self._turn:
            try:
                return work()
            except HinderedError:
                raise
            except StoreError as error:
                log.info("the index of chats is made anew: %s", error)
                self._remove()
                return work()

    def _find(self, query: Query) -> list[Found]:
        db = self._opened()
        values = {
            "archived": query.archived,
            "source": query.source,
            "model": query.model,
            "after": query.after,
            "before": query.before,
            "match": query.match,
        }
        numbers: dict[str, list[int]] = {}

        def take(row: sqlite3.Row) -> None:
            of_chat = numbers.get(row["id"])
            if of_chat is None:
                if len(numbers) == MOST:
                    return
                of_chat = numbers[row["id"]] = []
            if row["number"] is not None:
                of_chat.append(row["number"])

        wanted = [phrase.casefold() for phrase in query.phrases]

        def take_titled(row: sqlite3.Row) -> None:
            title = row["title"].casefold()
            if all(phrase in title for phrase in wanted):
                take(row)

        if query.match and self.has_index:
            db.visit(_FIND, values, take)
        else:
            db.visit(_RECENT, values, take_titled)
        return list(self._found(numbers))

    def _found(self, numbers: dict[str, list[int]]) -> Iterator[Found]:
        db = self._opened()
        for conversation_id, of_chat in numbers.items():
            rows = db.read("SELECT * FROM conversation WHERE id = ?", conversation_id)
            if not rows:
                continue
            try:
                with db.decoding(f"the chat {rows[0]['title']!r}"):
                    chat = read_conversation(rows[0])
            except DamagedError as error:
                log.info("%s", error)
                continue
            replied = db.read("SELECT model FROM message WHERE id = ?", chat.leaf)
            model = replied[0]["model"] if replied else ""
            yield Found(chat, model, tuple(of_chat), self.hit(of_chat[0]) if of_chat else None)

    def _take_in(self) -> int:
        return sum(self._slices())

    def _slices(self) -> Iterator[int]:
        """Take in what has changed, a slice at a time; yields how many messages each has.

        A transaction over two files may, where the program ends in it, be in the store alone. So
        what was taken in is crossed off in another one, unless it has changed meanwhile.
        """
        db = self._opened()
        while True:
            with db.transaction():
                if self._place() != self._taken:
                    raise StoreError(f"{self._file}: another program has made it anew")
                rows = db.read(_WAITING, _SLICE)
                for row in rows:
                    db.write("DELETE FROM found.words WHERE rowid = ?", (row["number"],))
                    if row["content"] is not None:
                        db.write(
                            "INSERT INTO found.words (rowid, title, content) VALUES (?, ?, ?)",
                            (row["number"], split(row["title"]), split(row["content"])),
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
            if self.has_index:
                try:
                    make_file(self._file)
                except OSError as error:
                    text = f"{self._file}: it cannot be opened ({error.strerror or error})"
                    raise HinderedError(text) from None
                self._taken = self._place()
                db.read("ATTACH ? AS found", str(self._file))
                with db.transaction():
                    if not db.read("SELECT 1 FROM found.sqlite_schema WHERE name = 'words'"):
                        db.write(_WORDS, ())
                        db.write("INSERT OR IGNORE INTO unindexed SELECT number FROM message", ())
        except StoreError:
            db.close()
            raise
        self._db = db
        return db

    def _remove(self) -> None:
        """Remove the index, unless another program has made it anew since it was opened here.

        Who writes to the index has the store locked. So nobody is at it meanwhile, and they all see
        afterwards that it is another file.
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
        """Which file the index is for the system; None if it is not there."""
        try:
            state = self._file.stat()
        except FileNotFoundError:
            return None
        return state.st_dev, state.st_ino


def has_fts5() -> bool:
    """Whether this Python's SQLite can index text."""
    with sqlite3.connect(":memory:") as db:
        return bool(db.execute("SELECT sqlite_compileoption_used('ENABLE_FTS5')").fetchone()[0])
