"""Roster: one line for each chat, for lists."""

from __future__ import annotations

from dataclasses import dataclass

from app.store.database import Database

_CHATS = """
SELECT conversation.id, title, conversation.number, source, user, updated,
    coalesce(message.model, '') AS model
FROM conversation LEFT JOIN message ON message.id = conversation.leaf
WHERE deleted_at IS NULL AND NOT is_archived
ORDER BY updated DESC
"""


@dataclass(frozen=True, slots=True)
class Listed:
    """One chat.

    Attributes:
        number: None if it never was on a screen.
        updated: seconds since the epoch.
        model: of its last reply; empty if there is none.
    """

    id: str
    title: str
    number: int | None
    source: str
    user: str
    updated: float
    model: str


class Roster:
    """Reads chats without their messages.

    Raises:
        StoreError: from every method.
    """

    def __init__(self, database: Database) -> None:
        self._db = database

    def chats(self) -> list[Listed]:
        """Chats that are neither archived nor deleted, the last used first."""
        return [Listed(*row) for row in self._db.read(_CHATS)]

    def version(self) -> int:
        """A number that changes whenever a chat is added, changed or removed, by any program.
        Replies in progress are written many times a second, and do not change it."""
        return int(self._db.read("SELECT version FROM roster")[0][0])
