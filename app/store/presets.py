"""Presets and prompts: settings of chats and texts, named by the user for reuse."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from app.store.database import Database
from engine.api.preset import Preset


class Presets:
    """The table `preset`. One of them may be the default for new chats.

    Raises:
        StoreError: from every method.
    """

    def __init__(self, database: Database) -> None:
        self._db = database

    def all(self) -> list[Preset]:
        """All presets, by name."""
        rows = self._db.read("SELECT * FROM preset ORDER BY name")
        with self._db.decoding("a preset"):
            return [
                Preset(row["name"], row["system"], dict(json.loads(row["sampling"])))
                for row in rows
            ]

    def default(self) -> str:
        """The name of the preset for new chats; empty if there is none."""
        rows = self._db.read("SELECT name FROM preset WHERE is_default")
        return rows[0]["name"] if rows else ""

    def save(self, preset: Preset) -> None:
        """Add a preset, or replace the one with its name."""
        self._db.write(
            "INSERT INTO preset (name, system, sampling) VALUES (?1, ?2, ?3)"
            " ON CONFLICT (name) DO UPDATE SET system = ?2, sampling = ?3",
            (preset.name, preset.system, json.dumps(dict(preset.sampling))),
        )

    def rename(self, old: str, new: str) -> None:
        """Rename a preset; it replaces one that has the new name."""
        if old == new:
            return
        with self._db.transaction():
            self._db.write("DELETE FROM preset WHERE name = ?", (new,))
            self._db.write("UPDATE preset SET name = ? WHERE name = ?", (new, old))

    def delete(self, name: str) -> None:
        self._db.write("DELETE FROM preset WHERE name = ?", (name,))

    def set_default(self, name: str) -> None:
        """Make this preset the default for new chats; none if `name` is empty."""
        self._db.write("UPDATE preset SET is_default = (name = ?)", (name,))


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
