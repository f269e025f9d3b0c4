"""Prompts: named texts for reuse."""

from __future__ import annotations

import time
from collections.abc import Callable

from app.store.database import Database


class Prompts:
    """The table `prompt`.

    Args:
        clock: seconds since the epoch.

    Raises:
        StoreError: from every method.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._db = database
        self._clock = clock

    def all(self) -> dict[str, str]:
        """The texts by name, in the order of names."""
        rows = self._db.read("SELECT name, content FROM prompt ORDER BY name")
        return {row["name"]: row["content"] for row in rows}

    def save(self, name: str, text: str) -> None:
        """Add a text, or replace the one with its name."""
        self._db.write(
            "INSERT INTO prompt (name, content, updated) VALUES (?1, ?2, ?3)"
            " ON CONFLICT (name) DO UPDATE SET content = ?2, updated = ?3",
            (name, text, self._clock()),
        )

    def delete(self, name: str) -> None:
        self._db.write("DELETE FROM prompt WHERE name = ?", (name,))
