"""Contexts: the token ids of conversations, each stored as a delta to the previous one."""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Sequence
from contextlib import suppress

from app.store.database import DamagedError, Database
from app.store.rows import UP
from engine.api.stream import Context

_KEPT = f"""
{UP}
SELECT message.id, context, context_start, context_messages, model_key
FROM up JOIN message ON message.id = up.id
WHERE context IS NOT NULL ORDER BY distance
"""


class Contexts:
    """Token ids that are stored with the message that they end with.

    Raises:
        StoreError: from every method.
    """

    def __init__(self, database: Database) -> None:
        self._db = database

    def of(self, message_id: str) -> tuple[str, Context] | None:
        """The token ids stored with this message, or else with the nearest one before it, and that
        message's id."""
        rows = self._db.read(_KEPT, message_id)
        if not rows:
            return None
        newest = rows[0]
        ids = self._token_ids(rows)
        return newest["id"], Context(newest["model_key"], ids, newest["context_messages"])

    def save(self, message_id: str, context: Context) -> None:
        """Store the token ids of the conversation up to and including this message.

        Only the part after the nearest context before it is written: whole contexts would grow with
        the square of the conversation's length.
        """
        with self._db.transaction():
            before = [row for row in self._db.read(_KEPT, message_id) if row["id"] != message_id]
            start = 0
            if before and before[0]["model_key"] == context.model_key:
                with suppress(DamagedError):  # a damaged one is not continued
                    start = _shared(self._token_ids(before), context.token_ids)
            ids = array("I", context.token_ids[start:])
            self._db.write(
                "UPDATE message SET context = ?, context_start = ?, context_messages = ?,"
                " model_key = ? WHERE id = ?",
                (ids.tobytes(), start, context.num_messages, context.model_key, message_id),
            )

    def forget(self, message_id: str) -> None:
        """Drop the token ids of a message without successors."""
        self._db.write(
            "UPDATE message SET context = NULL, context_start = NULL, context_messages = NULL,"
            " model_key = NULL WHERE id = ?",
            (message_id,),
        )

    def _token_ids(self, rows: list[sqlite3.Row]) -> array[int]:
        with self._db.decoding("the context of a message"):
            return _unpack(rows)


def _unpack(rows: list[sqlite3.Row]) -> array[int]:
    """The context of the first row, assembled from those that it continues."""
    parts: list[array[int]] = []
    end: int | None = None
    for row in rows:
        start: int = row["context_start"]
        ids = array("I")
        ids.frombytes(row["context"])
        if end is None or start < end:
            parts.append(ids if end is None else ids[: end - start])
            end = start
        if end == 0:
            break
    return sum(reversed(parts), array("I"))


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of the common prefix."""
    if one == other[: len(one)]:
        return len(one)
    differing = (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differing, len(other))
