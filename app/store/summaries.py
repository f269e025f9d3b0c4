"""Summaries: a row of each chat, for lists, and which chat is shown."""

from __future__ import annotations

from dataclasses import dataclass

from app.store.database import Database

_CHATS = """
SELECT conversation.id, title, conversation.number, source, user, updated,
    coalesce(message.model, '') AS model, pinned_at IS NOT NULL AS is_pinned
FROM conversation LEFT JOIN message ON message.id = conversation.leaf
WHERE deleted_at IS NULL AND NOT is_archived
ORDER BY pinned_at IS NULL, pinned_at, updated DESC
"""


@dataclass(frozen=True, slots=True)
class ChatSummary:
    """One chat.

    Attributes:
        number: None if it never was on a screen.
        updated: seconds since the epoch.
        model: of its last reply; empty if there is none.
        is_pinned: whether the user pinned it.
    """

    id: str
    title: str
    number: int | None
    source: str
    user: str
    updated: float
    model: str
    is_pinned: bool


class Summaries:
    """Chats without their messages: the tables `roster` and `on_view`.

    Raises:
        StoreError: from every method.
    """

    def __init__(self, database: Database) -> None:
        self._db = database

    def all(self) -> list[ChatSummary]:
        """Chats that are neither archived nor deleted: the pinned ones in the order in which they
        were pinned, then the others, the last used first."""
        rows = map(dict, self._db.read(_CHATS))
        return [ChatSummary(**(row | {"is_pinned": bool(row["is_pinned"])})) for row in rows]

    def version(self) -> int:
        """A number that changes whenever a chat is added, changed or removed, by any program.
        Replies in progress are written many times a second, and do not change it."""
        return int(self._db.read("SELECT version FROM roster")[0][0])

    def current(self) -> str:
        """The id of the chat on view; empty if none was yet. The chat may not be in the store: it
        was deleted meanwhile, or never had messages."""
        return str(self._db.read("SELECT conversation_id FROM on_view")[0][0])

    def set_current(self, conversation_id: str) -> None:
        """Keep the id of the chat on view. The last writer of several programs wins."""
        self._db.write("UPDATE on_view SET conversation_id = ?", (conversation_id,))
