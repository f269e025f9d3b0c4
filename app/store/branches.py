"""Branches: the branching of a conversation's messages in the store."""

from __future__ import annotations

from collections import defaultdict

from app.store.conversation import new_id
from app.store.database import Database
from app.store.rows import UP

# The alternatives of each message of a branch, and the messages after its leaf.
_PLACES = """
WITH RECURSIVE up (id, parent_id) AS (
    SELECT id, parent_id FROM message WHERE id = ?1
    UNION ALL
    SELECT message.id, message.parent_id FROM up JOIN message ON message.id = up.parent_id
),
place (parent_id) AS (
    SELECT ?1 UNION SELECT parent_id FROM up
)
SELECT message.parent_id, message.id FROM place JOIN message
ON message.conversation_id = ?2 AND message.parent_id IS place.parent_id
ORDER BY message.number
"""

_NEWEST_LEAF = """
WITH RECURSIVE down (id, number) AS (
    SELECT id, number FROM message WHERE id = ?
    UNION ALL
    SELECT message.id, message.number FROM down JOIN message ON message.parent_id = down.id
)
SELECT id FROM down ORDER BY number DESC LIMIT 1
"""

# Columns that a copy of a message does not share: a request is answered once.
_OWN = ("number", "id", "conversation_id", "parent_id", "request_id")


class Branches:
    """Works with ids alone: of a branch that is not on view, nothing else is loaded.

    Raises:
        StoreError: from every method.
    """

    def __init__(self, db: Database) -> None:
        self._db = db

    def places(self, conversation_id: str, leaf: str | None) -> dict[str | None, list[str]]:
        """The branch points of the branch that ends in a leaf: the ids of all messages after each
        of its messages, after the leaf, and at the beginning (None), in order of creation.
        """
        places: dict[str | None, list[str]] = defaultdict(list)
        for row in self._db.read(_PLACES, leaf, conversation_id):
            places[row["parent_id"]].append(row["id"])
        return dict(places)

    def newest_leaf(self, message_id: str) -> str | None:
        """The last added message after this one, or this one; None if it does not exist.

        It is a leaf, because messages are only added after existing ones.
        """
        rows = self._db.read(_NEWEST_LEAF, message_id)
        return rows[0]["id"] if rows else None

    def copy(self, leaf: str, conversation_id: str) -> str:
        """Copy the branch that ends in a leaf, with its token ids, into another conversation.

        Returns:
            the id of the leaf's copy.
        """
        copies: dict[str | None, str | None] = {None: None}
        with self._db.transaction():
            names = [row["name"] for row in self._db.read("PRAGMA table_info(message)")]
            kept = ", ".join(name for name in names if name not in _OWN)
            for row in self._db.read(
                f"{UP} SELECT id, parent_id FROM up ORDER BY distance DESC", leaf
            ):
                copies[row["id"]] = copy = new_id()
                self._db.write(
                    f"INSERT INTO message (id, conversation_id, parent_id, {kept})"
                    f" SELECT ?, ?, ?, {kept} FROM message WHERE id = ?",
                    (copy, conversation_id, copies[row["parent_id"]], row["id"]),
                )
        return copy

    def version(self) -> int:
        """A number that changes whenever another connection has written to the store."""
        return int(self._db.read("PRAGMA data_version")[0][0])
