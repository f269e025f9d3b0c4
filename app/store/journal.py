"""Journal: records every accepted request, how it ended, and whether its client got the ending."""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from app.store.database import DamagedError, Database
from app.store.leases import Leases
from engine.api.errors import ErrorInfo
from engine.api.lifecycle import FinishReason

log = logging.getLogger(__name__)

RESTARTED = ErrorInfo("restarted", "the program ended before this reply was complete; ask again")

_BEGIN = """
INSERT INTO request
    (request_id, attempt, user, conversation_id, source, body, digest, reply_to, lease, accepted_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""

_END = """
UPDATE request SET ended_at = ?, reason = ?, error = ?, ending = ?
WHERE request_id = ? AND attempt = ? AND ended_at IS NULL
"""

# U+10FFFF is no character, and the last in the order of UTF-8.
_UNDELIVERED = """
SELECT * FROM request
WHERE source = ?1 AND request_id >= ?2 AND request_id < ?2 || char(0x10FFFF)
    AND ended_at IS NOT NULL AND told_at IS NULL
ORDER BY ended_at, attempt
"""

# The leases of a source's undelivered endings, and a statement that moves one process's endings to
# another lease.
_DELIVERERS = """
SELECT DISTINCT lease FROM request
WHERE source = ?1 AND request_id >= ?2 AND request_id < ?2 || char(0x10FFFF)
    AND ended_at IS NOT NULL AND told_at IS NULL
"""

_ADOPT = """
UPDATE request SET lease = ?3
WHERE source = ?1 AND request_id >= ?2 AND request_id < ?2 || char(0x10FFFF)
    AND ended_at IS NOT NULL AND told_at IS NULL AND lease = ?4
"""

_MARK_DELIVERED = """
UPDATE request SET told_at = ?
WHERE request_id = ? AND attempt = ? AND ended_at IS NOT NULL AND told_at IS NULL
"""

_FORGET = """
DELETE FROM request WHERE (request_id, attempt) IN (
    SELECT request_id, attempt FROM request
    WHERE source = ? AND told_at IS NOT NULL AND ended_at < ? LIMIT ?
)
"""

_ORPHANED_REPLIES = """
UPDATE message SET finish_reason = ?, error = ?
WHERE finish_reason IS NULL
    AND request_id IN (SELECT request_id FROM request WHERE lease = ? AND ended_at IS NULL)
"""

_ORPHANS = """
UPDATE request SET ended_at = ?, reason = ?, error = ? WHERE lease = ? AND ended_at IS NULL
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """One accepted request, and how it ended.

    Attributes:
        attempt: counts from 1 if the same request is run again.
        body: the request, in the source's format.
        digest: distinguishes a different request under the same id from a repeat of this one.
        reply_to: the reply address, in the source's format.
        accepted_at, ended_at, told_at: seconds since the epoch.
        ending: the final message, in the source's format; None if the source stores none, and if
            the program ended before the request.
        told_at: when its client had got the ending.
    """

    request_id: str
    attempt: int = 1
    user: str = "local"
    conversation_id: str | None = None
    source: str = "screen"
    body: str = ""
    digest: str = ""
    reply_to: str = ""
    accepted_at: float = field(default_factory=time.time)
    ended_at: float | None = None
    reason: FinishReason | None = None
    error: ErrorInfo | None = None
    ending: str | None = None
    told_at: float | None = None


class Journal:
    """The journal of a store. An attempt has at most one ending: a second call of `end` changes
    nothing.

    Args:
        leases: this program's own lease marks its requests, which protects them while it is held.

    Raises:
        StoreError: from every method.
    """

    def __init__(self, db: Database, leases: Leases) -> None:
        self._db = db
        self._leases = leases

    def start(self, entry: JournalEntry) -> None:
        """Journal a request before it is submitted to the engine.

        Raises:
            StoreError: also when this attempt is in the journal already.
        """
        self._db.write(
            _BEGIN,
            (
                entry.request_id,
                entry.attempt,
                entry.user,
                entry.conversation_id,
                entry.source,
                entry.body,
                entry.digest,
                entry.reply_to,
                self._leases.own,
                entry.accepted_at,
            ),
        )

    def end(
        self,
        request_id: str,
        reason: FinishReason,
        error: ErrorInfo | None = None,
        attempt: int = 1,
        ending: str | None = None,
    ) -> bool:
        """Journal the end of an attempt.

        Returns:
            False if it had ended already: its first ending stays. Also if it never began.
        """
        values = (time.time(), reason, dump_error(error), ending, request_id, attempt)
        return self._db.write(_END, values) == 1

    def entry(self, request_id: str, attempt: int = 1) -> JournalEntry | None:
        rows = self._db.read(
            "SELECT * FROM request WHERE request_id = ? AND attempt = ?", request_id, attempt
        )
        return self._entry(rows[0]) if rows else None

    def last(self, request_id: str) -> JournalEntry | None:
        """The newest attempt at a request."""
        rows = self._db.read(
            "SELECT * FROM request WHERE request_id = ? ORDER BY attempt DESC LIMIT 1", request_id
        )
        return self._entry(rows[0]) if rows else None

    def undelivered(self, source: str, prefix: str) -> list[JournalEntry]:
        """Ended requests with undelivered endings, in the order in which they ended.

        Those of another live program are left out: it delivers them itself. So are damaged ones.

        Args:
            prefix: of their ids.
        """
        rows = self._db.read(_UNDELIVERED, source, prefix)
        ours = {self._leases.own, *self._leases.dead(row["lease"] for row in rows)}
        entries = []
        for row in rows:
            if row["lease"] in ours:
                try:
                    entries.append(self._entry(row))
                except DamagedError as error:
                    log.error("an ending cannot be read: %s", error)
        return entries

    def adopt(self, source: str, prefix: str) -> int:
        """Take over the undelivered endings of dead processes, after ending their unfinished
        requests.

        Args:
            prefix: of the requests' ids.

        Returns:
            the number of endings taken over.
        """
        self.end_orphans()
        deliverers = {row["lease"] for row in self._db.read(_DELIVERERS, source, prefix)}
        dead = self._leases.dead(deliverers)
        if not dead:
            return 0
        with self._db.transaction():
            return sum(
                self._db.write(_ADOPT, (source, prefix, self._leases.own, lease)) for lease in dead
            )

    def mark_delivered(self, attempts: Iterable[tuple[str, int]]) -> None:
        """Mark the endings of these as delivered: request ids and attempts.

        This skips attempts that have not ended, or that are marked already.
        """
        now = time.time()
        self._db.write_all(
            _MARK_DELIVERED, ((now, request_id, attempt) for request_id, attempt in attempts)
        )

    def forget(self, source: str, before: float, most: int = -1) -> int:
        """Remove requests with delivered endings that ended before a time (epoch seconds).

        Args:
            most: the limit of one call; -1 is none.

        Returns:
            the number removed.
        """
        return self._db.write(_FORGET, (source, before, most))

    def end_orphans(self) -> None:
        """End the unfinished requests of dead processes, and their replies, as `RESTARTED`."""
        rows = self._db.read("SELECT DISTINCT lease FROM request WHERE ended_at IS NULL")
        orphaned = self._leases.dead(row["lease"] for row in rows)
        if not orphaned:
            return
        reason, error = FinishReason.ERROR, dump_error(RESTARTED)
        with self._db.transaction():
            for lease in orphaned:
                self._db.write(_ORPHANED_REPLIES, (reason, error, lease))
                self._db.write(_ORPHANS, (time.time(), reason, error, lease))

    def _entry(self, row: sqlite3.Row) -> JournalEntry:
        with self._db.decoding(f"the request {row['request_id']!a}"):
            return _entry(row)


def dump_error(error: ErrorInfo | None) -> str | None:
    """An error in the store's format."""
    return None if error is None else json.dumps(asdict(error))


def load_error(text: str | None) -> ErrorInfo | None:
    return None if text is None else ErrorInfo(**json.loads(text))


def _entry(row: sqlite3.Row) -> JournalEntry:
    values: dict[str, Any] = {name: row[name] for name in JournalEntry.__slots__}
    values["reason"] = FinishReason(values["reason"]) if values["reason"] else None
    values["error"] = load_error(values["error"])
    return JournalEntry(**values)
