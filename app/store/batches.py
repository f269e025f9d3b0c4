"""Batches: the stored batches, their leases, and their answers so far."""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import NamedTuple

from app.store.database import DamagedError, Database
from app.store.files import GROW, Files, Line
from app.store.leases import Leases
from app.store.stored_batch import (
    FOLLOWS,
    BatchStatus,
    LineError,
    StoredBatch,
    TokenCounts,
    new_batch_id,
)

log = logging.getLogger(__name__)

OUTPUT = "batch_output"

_CREATE = """
INSERT INTO batch (id, user, endpoint, completion_window, metadata, status, lease, moments, input,
    keep_seconds, created, expires)
VALUES (?, ?, ?, ?, ?, 'validating', ?, '{}', ?, ?, ?, ?)
"""

# One answer for each line, in either of the two files, also if two programs try to store one.
_ANSWER = """
INSERT INTO line (file, number, content)
SELECT file.number, ?3, ?4 FROM batch JOIN file ON file.id = iif(?5, output, faults)
WHERE batch.id = ?1 AND batch.lease = ?2 AND batch.ended IS NULL AND NOT EXISTS (
    SELECT 1 FROM file AS filled JOIN line ON line.file = filled.number
    WHERE filled.id IN (output, faults) AND line.number = ?3
)
"""

_FILLED = """
SELECT file.number FROM batch JOIN file ON file.id = iif(?, output, faults) WHERE batch.id = ?
"""

_COUNT = """
UPDATE batch SET completed = completed + ?, failed = failed + ?,
    input_tokens = input_tokens + ?, cached_tokens = cached_tokens + ?,
    output_tokens = output_tokens + ?, reasoning_tokens = reasoning_tokens + ?
WHERE id = ?
"""

_ANSWERED = """
SELECT line.number FROM file JOIN line ON line.file = file.number
WHERE file.id IN (?, ?) AND line.number BETWEEN ? AND ?
"""


class Answer(NamedTuple):
    """The answer to a line.

    Attributes:
        number: of the line.
        content: a line of the output file or of the error file.
        is_well: whether it is no error.
        tokens: the tokens that it used.
    """

    number: int
    content: bytes
    is_well: bool
    tokens: TokenCounts = TokenCounts()


class Batches:
    """The batches of all users. Users cannot find each other's.

    An unfinished batch is under the lease of the program that runs it. Other programs can only
    cancel it.

    Raises:
        StoreError: from every method.
    """

    def __init__(self, db: Database, leases: Leases, files: Files) -> None:
        self._db = db
        self._leases = leases
        self._files = files

    def create(
        self,
        user: str,
        *,
        endpoint: str,
        input_file: str,
        completion_window: str,
        seconds: float,
        metadata: Mapping[str, str] | None,
        keep_seconds: float,
    ) -> StoredBatch:
        """Create a batch, which this program runs.

        Args:
            input_file: the id of a file of this user.
            seconds: from now until it expires.
            keep_seconds: how long its output is kept.
        """
        batch_id, now = new_batch_id(), time.time()
        stated = None if metadata is None else json.dumps(dict(metadata))
        with self._db.transaction():
            self._db.write(
                _CREATE,
                (
                    *(batch_id, user, endpoint, completion_window, stated, self._leases.own),
                    *(input_file, keep_seconds, now, now + seconds),
                ),
            )
            return self.reread(batch_id)

    def get(self, user: str, batch_id: str) -> StoredBatch | None:
        rows = self._db.read("SELECT * FROM batch WHERE id = ? AND user = ?", batch_id, user)
        return self._batch(rows[0]) if rows else None

    def of_user(self, user: str, *, after: StoredBatch | None, most: int) -> list[StoredBatch]:
        """Batches of a user, newest first.

        Args:
            after: return those that follow this one.
        """
        rows = self._db.read(
            "SELECT * FROM batch WHERE user = ?1 AND (?2 IS NULL OR number < ?2)"
            " ORDER BY number DESC LIMIT ?3",
            *(user, None if after is None else after.number, most),
        )
        return [self._batch(row) for row in rows]

    def counts(self, user: str) -> tuple[int, int]:
        """The number of a user's stored batches, and how many of them have not ended."""
        (row,) = self._db.read(
            "SELECT count(*), coalesce(sum(ended IS NULL), 0) FROM batch WHERE user = ?", user
        )
        return row[0], row[1]

    def reread(self, batch_id: str) -> StoredBatch:
        """The current state of a batch of any user, by its id; it must exist."""
        (row,) = self._db.read("SELECT * FROM batch WHERE id = ?", batch_id)
        return self._batch(row)

    def adopt(self) -> list[StoredBatch]:
        """Take over the batches of dead programs.

        Returns:
            all unfinished batches of this program, oldest first, without damaged ones.
        """
        rows = self._db.read("SELECT DISTINCT lease FROM batch WHERE ended IS NULL")
        for lease in self._leases.dead(row["lease"] for row in rows):
            self._db.write(
                "UPDATE batch SET lease = ? WHERE lease = ? AND ended IS NULL",
                (self._leases.own, lease),
            )
        mine = self._db.read(
            "SELECT * FROM batch WHERE lease = ? AND ended IS NULL ORDER BY number",
            self._leases.own,
        )
        found = []
        for row in mine:
            try:
                found.append(self._batch(row))
            except DamagedError as error:
                log.error("a batch cannot be run: %s", error)
        return found

    def leave(self) -> None:
        """Release the unfinished batches for another program."""
        self._db.write(
            "UPDATE batch SET lease = '' WHERE lease = ? AND ended IS NULL", (self._leases.own,)
        )

    def start(self, batch_id: str, total: int) -> StoredBatch:
        """Start a validated batch with `total` requests, and create the files for its answers. This
        does nothing if it was cancelled meanwhile.
        """
        with self._db.transaction():
            batch = self.reread(batch_id)
            if self._go(batch, BatchStatus.IN_PROGRESS):
                output, faults = (self._files.create(batch.user, by_batch=True) for _ in range(2))
                self._db.write(
                    "UPDATE batch SET total = ?, output = ?, faults = ? WHERE id = ?",
                    (total, output.id, faults.id, batch_id),
                )
            return self.reread(batch_id)

    def fail(self, batch_id: str, errors: Sequence[LineError]) -> StoredBatch:
        """Fail a batch whose file is invalid. This does nothing if it was cancelled meanwhile."""
        with self._db.transaction():
            if self._go(self.reread(batch_id), BatchStatus.FAILED):
                listed = json.dumps([asdict(one) for one in errors])
                self._db.write("UPDATE batch SET errors = ? WHERE id = ?", (listed, batch_id))
            return self.reread(batch_id)

    def cancel(self, user: str, batch_id: str) -> StoredBatch | None:
        """Cancel the unanswered rest of a batch, if it may be cancelled; None if there is no such
        batch."""
        with self._db.transaction():
            batch = self.get(user, batch_id)
            if batch is None:
                return None
            self._go(batch, BatchStatus.CANCELLING)
            return self.reread(batch_id)

    def finalize(self, batch_id: str) -> StoredBatch:
        """Mark a batch as answered or expired. This does nothing if it was cancelled meanwhile."""
        with self._db.transaction():
            self._go(self.reread(batch_id), BatchStatus.FINALIZING)
            return self.reread(batch_id)

    def end(self, batch_id: str, status: BatchStatus) -> StoredBatch:
        """End a batch whose requests are answered, and publish its files, unless they are empty."""
        with self._db.transaction():
            batch = self.reread(batch_id)
            if self._go(batch, status):
                kept = (
                    self._close(batch, batch.output, "output"),
                    self._close(batch, batch.faults, "error"),
                )
                self._db.write(
                    "UPDATE batch SET output = ?, faults = ? WHERE id = ?", (*kept, batch_id)
                )
            return self.reread(batch_id)

    def input(self, batch: StoredBatch, after: int) -> list[Line]:
        """The next input lines of a batch after the one with this number; none at the end."""
        rows = self._db.read("SELECT number FROM file WHERE id = ?", batch.input)
        return self._files.part(rows[0]["number"], after) if rows else []

    def unanswered(self, batch: StoredBatch, lines: Sequence[Line]) -> list[Line]:
        """Those of a batch's input lines that have no answer."""
        if not lines:
            return []
        rows = self._db.read(
            _ANSWERED, batch.output, batch.faults, lines[0].number, lines[-1].number
        )
        answered = {row["number"] for row in rows}
        return [line for line in lines if line.number not in answered]

    def answer(self, batch_id: str, answers: Sequence[Answer]) -> int:
        """Store answers, all or none, except to lines that have one, and to batches that this
        program does not run any more.

        Returns:
            the number of stored answers.
        """
        self._db.check_disk(sum(len(one.content) for one in answers))
        with self._db.transaction():
            kept = [
                one
                for one in answers
                if self._db.write(
                    _ANSWER, (batch_id, self._leases.own, one.number, one.content, one.is_well)
                )
            ]
            for is_well in (True, False):
                if num_bytes := sum(len(one.content) for one in kept if one.is_well == is_well):
                    (row,) = self._db.read(_FILLED, is_well, batch_id)
                    self._db.write(GROW, (num_bytes, row[0]))
            num_well = sum(one.is_well for one in kept)
            tokens = [one.tokens for one in kept]
            self._db.write(
                _COUNT,
                (
                    *(num_well, len(kept) - num_well),
                    *(sum(one.input for one in tokens), sum(one.cached for one in tokens)),
                    *(sum(one.output for one in tokens), sum(one.reasoning for one in tokens)),
                    batch_id,
                ),
            )
        return len(kept)

    def forget(self, before: float) -> int:
        """Remove batches that ended before a time (epoch seconds); returns how many."""
        return self._db.removing(
            lambda: self._db.write("DELETE FROM batch WHERE ended < ?", (before,))
        )

    def _go(self, batch: StoredBatch, status: BatchStatus) -> bool:
        """Change the status of a batch, within a transaction; False if that transition is not
        allowed."""
        if status not in FOLLOWS[batch.status]:
            return False
        now = time.time()
        self._db.write(
            "UPDATE batch SET status = ?, ended = ?, moments = ? WHERE id = ?",
            (
                *(status, now if status.is_end else None),
                *(json.dumps({**batch.moments, status: now}), batch.id),
            ),
        )
        return True

    def _close(self, batch: StoredBatch, file_id: str | None, what: str) -> str | None:
        """Publish a file of answers; returns its id, or None if it is empty."""
        if file_id is None:
            return None
        (row,) = self._db.read("SELECT number FROM file WHERE id = ?", file_id)
        number, name = row["number"], f"{batch.id}_{what}.jsonl"
        if self._files.finish(number, name, OUTPUT, batch.keep_seconds).num_bytes:
            return file_id
        self._files.drop(number)
        return None

    def _batch(self, row: sqlite3.Row) -> StoredBatch:
        with self._db.decoding(f"the batch {row['id']!a}"):
            values = {name: row[name] for name in StoredBatch.__slots__ if name not in ("tokens",)}
            values["metadata"] = None if row["metadata"] is None else json.loads(row["metadata"])
            values["status"] = BatchStatus(row["status"])
            values["moments"] = json.loads(row["moments"])
            values["errors"] = tuple(LineError(**one) for one in json.loads(row["errors"] or "[]"))
            counts = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
            return StoredBatch(**values, tokens=TokenCounts(*(row[name] for name in counts)))
