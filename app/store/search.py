"""Search: finds chats by the words of their titles and messages."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from app.store.conversation import Conversation
from app.store.database import DamagedError, Database
from app.store.query import Query
from app.store.rows import read_conversation
from app.store.word_index import TITLE, WordIndex, searched_text

log = logging.getLogger(__name__)

MOST = 100  # most chats in one result
TITLE_WEIGHT = 10.0

_FILTERS = """
    conversation.deleted_at IS NULL
    AND (:archived OR NOT conversation.is_archived)
    AND (:pinned IS NULL OR (conversation.pinned_at IS NOT NULL) = :pinned)
    AND (:source = '' OR conversation.source = :source)
    AND (:model = '' OR conversation.id IN (
        SELECT conversation_id FROM message WHERE instr(lower(model), :model)
    ))
"""

# Chats are ranked by titles and messages. Each message is indexed together with its chat's title,
# so that words may be spread over both. Scores that differ by less than a tenth are equal; then
# newer ones come first.
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

# The messages that have all words themselves, without the title, and the titles that have them.
_WITHIN = """
SELECT rowid AS number FROM found.words
WHERE words MATCH 'content : (' || :match || ')'
ORDER BY round(bm25(words, 0.0, 1.0), 1), rowid DESC
"""
_TITLED = """
SELECT rowid AS number FROM found.words WHERE words MATCH 'title : (' || :match || ')'
"""

_RECENT = f"""
SELECT message.number, conversation.id, {TITLE}
FROM conversation LEFT JOIN message ON message.id = conversation.leaf
WHERE {_FILTERS}
    AND (:after IS NULL AND :before IS NULL OR EXISTS (
        SELECT * FROM message AS dated WHERE dated.conversation_id = conversation.id
            AND (:after IS NULL OR dated.created >= :after)
            AND (:before IS NULL OR dated.created < :before)
    ))
ORDER BY conversation.updated DESC
"""


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that contains the words.

    Attributes:
        created: seconds since the epoch.
        text: its content and attachments.
    """

    message_id: str
    role: str
    model: str
    created: float
    text: str


@dataclass(frozen=True, slots=True)
class Found:
    """A chat in the results.

    Attributes:
        model: of its last reply; empty if there is none.
        numbers: of the messages that have all words, best first; if neither a message nor the title
            has all of them, of those that have the words that the title lacks; without words, of
            the last message, if there is one.
        best: the first of these; None if there is none, for example if only the title has the
            words.
    """

    chat: Conversation
    model: str
    numbers: tuple[int, ...]
    best: Hit | None


class Search:
    """Finds chats with a word index beside the store. From any thread; threads take turns.

    Args:
        path: of the store.

    Attributes:
        has_index: whether this Python's SQLite has FTS5. Without it only titles are searched.

    Raises:
        StoreError: from every method.
    """

    def __init__(self, path: Path) -> None:
        self._index = WordIndex(path)
        self.has_index = self._index.can_be

    def close(self) -> None:
        self._index.close()

    def catch_up(self) -> int:
        """Index the changes since the last call; returns the number of messages."""
        return self._index.catch_up()

    def find(self, query: Query, most: int = MOST) -> list[Found]:
        """Chats with all these words in title and one message, together or in either, in the
        store's current state, best first; without words the last used first; at most `most`."""
        return self._index.over(lambda db: self._find(db, query, most))

    def hit(self, number: int) -> Hit | None:
        """The message with this number; None if it is gone."""
        rows = self._index.read(
            "SELECT id, role, model, created, content, attachments FROM message WHERE number = ?",
            number,
        )
        if not rows:
            return None
        row = rows[0]
        text = searched_text(row["content"], row["attachments"])
        return Hit(row["id"], row["role"], row["model"], row["created"], text)

    def _find(self, db: Database, query: Query, most: int) -> list[Found]:
        values = {
            "archived": query.archived,
            "pinned": query.pinned,
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
                if len(numbers) == most:
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
            numbers = self._hits(db, query.match, numbers)
        else:
            db.visit(_RECENT, values, take_titled)
            if wanted:
                numbers = {key: [] for key in numbers}
        return list(self._found(db, numbers))

    def _hits(
        self, db: Database, match: str, numbers: dict[str, list[int]]
    ) -> dict[str, list[int]]:
        """For each chat, those of the messages that found it that are hits."""
        chats = {number: key for key, of_chat in numbers.items() for number in of_chat}
        hits: dict[str, list[int]] = {key: [] for key in numbers}

        def take(row: sqlite3.Row) -> None:
            key = chats.get(row["number"])
            if key is not None:
                hits[key].append(row["number"])

        db.visit(_WITHIN, {"match": match}, take)
        titled: set[int] = set()
        db.visit(_TITLED, {"match": match}, lambda row: titled.add(row["number"]))
        return {
            key: of_chat or [number for number in numbers[key] if number not in titled]
            for key, of_chat in hits.items()
        }

    def _found(self, db: Database, numbers: dict[str, list[int]]) -> Iterator[Found]:
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
