"""Files: files of lines, a row for each, filled and read in parts."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from app.store.database import Database
from app.store.leases import Leases
from app.store.stored_file import FileState, StoredFile, new_file_id

# A part of a file has at most so many lines, and ends with the one that brings it to so many bytes.
PART_LINES = 256
PART_BYTES = 1 << 18

_BEGIN = """
INSERT INTO file (id, user, name, purpose, state, lease, num_bytes, created)
VALUES (?, ?, '', '', ?, ?, 0, ?)
"""

GROW = "UPDATE file SET num_bytes = num_bytes + ? WHERE number = ?"

_FINISH = """
UPDATE file SET state = ?, lease = '', name = ?, purpose = ?, expires = created + ?,
    num_bytes = (SELECT coalesce(sum(length(content)), 0) FROM line WHERE file = file.number)
WHERE number = ?
"""

# What is to be seen: all that is whole, but for what has expired and is not swept away yet.
_SEEN = "user = ? AND state = 'whole' AND expires >= ?"

# What is to be swept away: what was deleted, what has expired, and what a dead program began. What
# batches fill stands under no lease. What an unfinished batch reads stays until that has ended.
_DOOMED = """
SELECT number FROM file
WHERE (
    state = 'deleted'
    OR state = 'whole' AND expires < ?
    OR state = 'filling' AND lease IN (SELECT value FROM json_each(?))
) AND NOT EXISTS (SELECT 1 FROM batch WHERE input = file.id AND ended IS NULL)
ORDER BY number LIMIT 256
"""

# Of those, what is empty goes at once: uploads that are refused may come faster than parts go.
_REMOVE = """
DELETE FROM file WHERE number IN (SELECT value FROM json_each(?))
    AND NOT EXISTS (SELECT 1 FROM line WHERE file = file.number)
"""


# Those of a user that are there, and those that are deleted and not swept away yet.
_TAKEN = """
SELECT state = 'deleted', count(*), coalesce(sum(num_bytes), 0) FROM file
WHERE user = ? GROUP BY state = 'deleted'
"""


class Taken(NamedTuple):
    """How much of the store the files of a user take.

    Attributes:
        num_files, num_bytes: of those that are there, unfinished ones among them.
        deleted: bytes of those that are deleted and not swept away yet.
    """

    num_files: int
    num_bytes: int
    deleted: int


class Line(NamedTuple):
    """A line of a file with what ends it; those of a file are numbered from 1 on."""

    number: int
    content: bytes


class Files:
    """The files of all users. Nobody finds what is another user's.

    Args:
        leases: what is filled under one that nobody holds any more will never be whole.

    Raises:
        StoreError: from every method.
    """

    def __init__(self, db: Database, leases: Leases) -> None:
        self._db = db
        self._leases = leases

    def begin(self, user: str, *, by_batch: bool = False) -> StoredFile:
        """Begin a file, which nobody sees before it is finished.

        Args:
            by_batch: it is filled by a batch, whoever runs that; else by this program alone.
        """
        file_id = new_file_id()
        lease = "" if by_batch else self._leases.own
        with self._db.transaction():
            self._db.write(_BEGIN, (file_id, user, FileState.FILLING, lease, time.time()))
            (row,) = self._db.read("SELECT * FROM file WHERE id = ?", file_id)
        return _file(row)

    def add(self, number: int, lines: Iterable[Line]) -> None:
        """Add lines to the file of this number, all or none."""
        added = [(number, line.number, line.content) for line in lines]
        num_bytes = sum(len(content) for _, _, content in added)
        self._db.check_disk(num_bytes)
        with self._db.transaction():
            self._db.write_all("INSERT INTO line (file, number, content) VALUES (?, ?, ?)", added)
            self._db.write(GROW, (num_bytes, number))

    def taken(self, user: str) -> Taken:
        """How much a user's files take."""
        found = {bool(row[0]): (row[1], row[2]) for row in self._db.read(_TAKEN, user)}
        return Taken(*found.get(False, (0, 0)), deleted=found.get(True, (0, 0))[1])

    def finish(self, number: int, name: str, purpose: str, keep_seconds: float) -> StoredFile:
        """Have a file be seen.

        Args:
            name: by which its owner knows it.
            keep_seconds: how long from when it was begun.
        """
        with self._db.transaction():
            self._db.write(_FINISH, (FileState.WHOLE, name, purpose, keep_seconds, number))
            (row,) = self._db.read("SELECT * FROM file WHERE number = ?", number)
        return _file(row)

    def get(self, user: str, file_id: str) -> StoredFile | None:
        rows = self._db.read(
            f"SELECT * FROM file WHERE id = ? AND {_SEEN}", file_id, user, time.time()
        )
        return _file(rows[0]) if rows else None

    def of_user(
        self, user: str, *, after: StoredFile | None, most: int, purpose: str | None, newest: bool
    ) -> list[StoredFile]:
        """Files of a user, in the order in which they came.

        Args:
            after: those that follow this one.
            purpose: those that have this one.
            newest: whether the newest is first.
        """
        follows, order = ("<", "DESC") if newest else (">", "ASC")
        rows = self._db.read(
            f"SELECT * FROM file WHERE {_SEEN} AND (?3 IS NULL OR number {follows} ?3)"
            f" AND (?4 IS NULL OR purpose = ?4) ORDER BY number {order} LIMIT ?5",
            *(user, time.time(), None if after is None else after.number, purpose, most),
        )
        return [_file(row) for row in rows]

    def delete(self, user: str, file_id: str) -> bool:
        """Have a file be seen no more; its room is free after `sweep`. False if there is none."""

        def drop() -> bool:
            with self._db.transaction():
                file = self.get(user, file_id)
                if file is not None:
                    self.drop(file.number)
            return file is not None

        return self._db.removing(drop)

    def drop(self, number: int) -> None:
        """As `delete`, of a file that may be unfinished."""
        self._db.write("UPDATE file SET state = ? WHERE number = ?", (FileState.DELETED, number))

    def part(self, number: int, after: int) -> list[Line]:
        """The next lines of a file behind the one of this number, in order; none at its end."""
        rows = self._db.read(
            "SELECT number, content FROM line WHERE file = ? AND number > ? AND number <= ?"
            " ORDER BY number",
            *(number, after, self._part_end(number, after)),
        )
        return [Line(*row) for row in rows]

    def sweep(self) -> bool:
        """Remove a part of what nobody is to see any more; False if there is nothing."""
        leases = self._db.read("SELECT DISTINCT lease FROM file WHERE state = 'filling'")
        dead = self._leases.dead(row["lease"] for row in leases if row["lease"])
        doomed = self._db.read(_DOOMED, time.time(), json.dumps([*dead]))
        if not doomed:
            return False
        number = doomed[0]["number"]

        def remove() -> None:
            with self._db.transaction():
                end = self._part_end(number, 0)
                self._db.write("DELETE FROM line WHERE file = ? AND number <= ?", (number, end))
                self._db.write(_REMOVE, (json.dumps([row["number"] for row in doomed]),))

        self._db.removing(remove)
        return True

    def _part_end(self, number: int, after: int) -> int:
        """The number of the last line of the part that begins behind a line."""
        # The size of a cell is known without its content.
        rows = self._db.read(
            "SELECT number, length(content) FROM line WHERE file = ? AND number > ?"
            " ORDER BY number LIMIT ?",
            *(number, after, PART_LINES),
        )
        return _end(rows, after)


def _end(rows: Sequence[sqlite3.Row], after: int) -> int:
    room = PART_BYTES
    for row in rows:
        after, room = row[0], room - row[1]
        if room <= 0:
            break
    return after


def _file(row: sqlite3.Row) -> StoredFile:
    return StoredFile(**{name: row[name] for name in StoredFile.__slots__})
