"""Files: files of lines, a row for each, filled and read in parts."""

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import NamedTuple

from app.store.database import Database
from app.store.leases import Leases

# Limits of a part of a file: so many lines, and it ends with the line that reaches so many bytes.
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

# Visible files: all that are complete and not expired.
_SEEN = "user = ? AND state = 'whole' AND expires >= ?"

# Files to sweep: deleted ones, expired ones, and those that a dead program began. Files that
# batches fill have no lease. The input of an unfinished batch stays until that has ended.
_DOOMED = """
SELECT number FROM file
WHERE (
    state = 'deleted'
    OR state = 'whole' AND expires < ?
    OR state = 'filling' AND lease IN (SELECT value FROM json_each(?))
) AND NOT EXISTS (SELECT 1 FROM batch WHERE input = file.id AND ended IS NULL)
ORDER BY number LIMIT 256
"""

# Empty ones of these go at once: refused uploads may come faster than parts are removed.
_REMOVE = """
DELETE FROM file WHERE number IN (SELECT value FROM json_each(?))
    AND NOT EXISTS (SELECT 1 FROM line WHERE file = file.number)
"""


# A user's present files, and the deleted ones that are not swept yet.
_USAGE = """
SELECT state = 'deleted', count(*), coalesce(sum(num_bytes), 0) FROM file
WHERE user = ? GROUP BY state = 'deleted'
"""


class FileState(StrEnum):
    """The state of a file. Only a `WHOLE` one is visible."""

    FILLING = auto()
    WHOLE = auto()
    DELETED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """The properties of a file, without its lines.

    Attributes:
        number: identifies its lines in the store.
        name: its name at upload.
        created, expires: seconds since the epoch; None never expires.
    """

    number: int
    id: str
    user: str
    name: str
    purpose: str
    num_bytes: int
    created: float
    expires: float | None


def new_file_id() -> str:
    return f"file-{uuid.uuid4().hex}"


class StorageUsage(NamedTuple):
    """The storage used by a user's files.

    Attributes:
        num_files, num_bytes: of present files, including unfinished ones.
        deleted: bytes of deleted files that are not swept yet.
    """

    num_files: int
    num_bytes: int
    deleted: int


class Line(NamedTuple):
    """A line of a file with its newline; lines are numbered from 1."""

    number: int
    content: bytes


class Files:
    """The files of all users. Users cannot find each other's.

    Args:
        leases: a file under the lease of a dead program will never be complete.

    Raises:
        StoreError: from every method.
    """

    def __init__(self, db: Database, leases: Leases) -> None:
        self._db = db
        self._leases = leases

    def create(self, user: str, *, by_batch: bool = False) -> StoredFile:
        """Create a file, which is invisible until it is finished.

        Args:
            by_batch: whether a batch fills it, in whatever program; else only this program does.
        """
        file_id = new_file_id()
        lease = "" if by_batch else self._leases.own
        with self._db.transaction():
            self._db.write(_BEGIN, (file_id, user, FileState.FILLING, lease, time.time()))
            (row,) = self._db.read("SELECT * FROM file WHERE id = ?", file_id)
        return _file(row)

    def append(self, number: int, lines: Iterable[Line]) -> None:
        """Append lines to the file with this number, all or none."""
        added = [(number, line.number, line.content) for line in lines]
        num_bytes = sum(len(content) for _, _, content in added)
        self._db.check_disk(num_bytes)
        with self._db.transaction():
            self._db.write_all("INSERT INTO line (file, number, content) VALUES (?, ?, ?)", added)
            self._db.write(GROW, (num_bytes, number))

    def usage(self, user: str) -> StorageUsage:
        """The storage used by a user's files."""
        found = {bool(row[0]): (row[1], row[2]) for row in self._db.read(_USAGE, user)}
        return StorageUsage(*found.get(False, (0, 0)), deleted=found.get(True, (0, 0))[1])

    def finish(self, number: int, name: str, purpose: str, keep_seconds: float) -> StoredFile:
        """Make a file visible.

        Args:
            name: its name for its owner.
            keep_seconds: how long it is kept, from its creation.
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
        """Files of a user, in order of creation.

        Args:
            after: return those that follow this one.
            purpose: return those with this one.
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
        """Hide a file; its space is free after `sweep`. False if there is none."""

        def drop() -> bool:
            with self._db.transaction():
                file = self.get(user, file_id)
                if file is not None:
                    self.drop(file.number)
            return file is not None

        return self._db.removing(drop)

    def drop(self, number: int) -> None:
        """As `delete`, for a file that may be unfinished."""
        self._db.write("UPDATE file SET state = ? WHERE number = ?", (FileState.DELETED, number))

    def part(self, number: int, after: int) -> list[Line]:
        """The next lines of a file after the one with this number, in order; none at its end."""
        rows = self._db.read(
            "SELECT number, content FROM line WHERE file = ? AND number > ? AND number <= ?"
            " ORDER BY number",
            *(number, after, self._part_end(number, after)),
        )
        return [Line(*row) for row in rows]

    def sweep(self) -> bool:
        """Remove a part of the files to sweep; False if there is nothing."""
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
        """The number of the last line of the part that begins after a line."""
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
