"""Branches: where the messages of a conversation part, as the store has it."""

from __future__ import annotations

from collections import defaultdict

from app.store.database import Database

# All that stands where a message of a branch stands, and what stands behind its end.
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


class Branches:
    """Reads ids alone: of a branch that is not on view, nothing else is known.

    Raises:
        StoreError: from every method.
    """

    def __init__(self, db: Database) -> None:
        self._db = db

    def places(self, conversation_id: str, leaf: str | None) -> dict[str | None, list[str]]:
        """Where the branch that ends in a leaf parts: the ids of all messages behind each one of
        its messages, behind the leaf, and at the beginning (None), in the order in which they were
        added.
        """
        places: dict[str | None, list[str]] = defaultdict(list)
        for row in self._db.read(_PLACES, leaf, conversation_id):
            places[row["parent_id"]].append(row["id"])
        return dict(places)

    def newest_leaf(self, message_id: str) -> str | None:
        """The message behind this one that was added last, or this one; None if it is not there.

        Nothing stands behind it, as messages are added behind those that are there.
        """
        rows = self._db.read(_NEWEST_LEAF, message_id)
        return rows[0]["id"] if rows else None

    def version(self) -> int:
        """Another number whenever another connection has written to the store."""
        return int(self._db.read("PRAGMA data_version")[0][0])
