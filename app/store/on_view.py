"""OnView: the chat that is on view."""

from __future__ import annotations

from app.store.database import Database


class OnView:
    """The table `on_view`, which has one row. The last writer of several programs wins.

    Raises:
        StoreError: from every method.
    """

    def __init__(self, database: Database) -> None:
        self._db = database

    def key(self) -> str:
        """The id of the chat; empty if none was on view yet. The chat may not be in the store: it
        was deleted meanwhile, or never had messages."""
        return str(self._db.read("SELECT conversation_id FROM on_view")[0][0])

    def keep(self, conversation_id: str) -> None:
        self._db.write("UPDATE on_view SET conversation_id = ?", (conversation_id,))
