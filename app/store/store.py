"""Store: conversations, their messages and the request journal in one SQLite file."""

from __future__ import annotations

import json
import logging
import sqlite3
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from app.store.conversation import Conversation, Message
from app.store.database import DamagedError, Database, StoreError
from app.store.journal import Journal, dump_error, load_error
from app.store.lease import Lease
from app.store.private import make_file, make_folder, tighten, tighten_folder
from app.system.paths import CRASHES
from engine.api.lifecycle import FinishReason, Timings
from engine.api.stream import Context, Usage
from engine.api.tools import ToolUse

log = logging.getLogger(__name__)

_SAVE_CONVERSATION = """
INSERT INTO conversation
    (id, title, system, sampling, user, source, created, updated, leaf, is_open)
VALUES (:id, :title, :system, :sampling, :user, :source, :created, :updated, :leaf, :is_open)
ON CONFLICT (id) DO UPDATE SET
    title = :title, system = :system, sampling = :sampling, updated = :updated, leaf = :leaf,
    is_open = :is_open
"""

# U+10FFFF is no character, and the last in the order of UTF-8.
_FORGET = """
DELETE FROM conversation WHERE id IN (
    SELECT id FROM conversation
    WHERE source = ?1 AND updated < ?3 AND id >= ?2 AND id < ?2 || char(0x10FFFF)
        AND NOT EXISTS (
            SELECT * FROM request WHERE conversation_id = conversation.id AND ended_at IS NULL
        )
    ORDER BY updated LIMIT ?4
)
"""

_SAVE_MESSAGE = """
INSERT INTO message
    (id, conversation_id, parent_id, role, content, thinking, tool_use, tool_call_id, name, created,
    model, request_id, finish_reason, error, usage, timings)
VALUES (:id, :conversation_id, :parent_id, :role, :content, :thinking, :tool_use, :tool_call_id,
    :name, :created, :model, :request_id, :finish_reason, :error, :usage, :timings)
ON CONFLICT (id) DO UPDATE SET
    content = :content, thinking = :thinking, tool_use = :tool_use, finish_reason = :finish_reason,
    error = :error, usage = :usage, timings = :timings
"""

# A message and those before it, the newest first.
_UP = """
WITH RECURSIVE up (id, parent_id, distance) AS (
    SELECT id, parent_id, 0 FROM message WHERE id = ?
    UNION ALL
    SELECT message.id, message.parent_id, up.distance + 1
    FROM up JOIN message ON message.id = up.parent_id
)
"""

# By their names, as `*` would read the contexts, too, which are the larger part.
_COLUMNS = (
    "message.id, conversation_id, message.parent_id, role, content, thinking, tool_use,"
    " tool_call_id, name, created, model, request_id, finish_reason, error, usage, timings"
)

_BRANCH = f"""
{_UP}
SELECT {_COLUMNS} FROM up JOIN message ON message.id = up.id ORDER BY distance DESC
"""

_CONTEXTS = f"""
{_UP}
SELECT message.id, context, context_start, context_messages, model_key
FROM up JOIN message ON message.id = up.id
WHERE context IS NOT NULL ORDER BY distance
"""


class Store:
    """One SQLite file, for screen and gateways, on any thread, beside other processes.

    What a process that died left unfinished is ended as `RESTARTED` when the store is opened.

    Args:
        busy_seconds: as `Database` has it.

    Attributes:
        journal: of the requests.

    Raises:
        StoreError: from every method too.
    """

    def __init__(self, path: Path, busy_seconds: float | None = None) -> None:
        leases = path.with_name(f"{path.name}-leases")
        try:
            make_folder(path.parent)
            # The chats of others are nobody's on this machine; SQLite's other files follow it.
            make_file(path)
            tighten(*(path.with_name(f"{path.name}{end}") for end in ("", "-wal", "-shm")), leases)
            tighten_folder(path.parent, (path.name, CRASHES))
            self._lease = Lease(leases)
        except OSError as error:
            raise StoreError(f"{path}: it cannot be opened ({error.strerror or error})") from None
        try:
            self._db = Database(path, busy_seconds)
            self.journal = Journal(self._db, leases, self._lease)
            self.journal.end_orphans()
        except StoreError:
            self._lease.release()
            raise

    def close(self) -> None:
        self._db.close()
        self._lease.release()

    def transaction(self) -> AbstractContextManager[None]:
        """All writes within, or none.

        May be nested: an inner one that raises is taken back alone, and the outer one may go on.
        """
        return self._db.transaction()

    def on_commit(self, call: Callable[[], object]) -> None:
        """Within a transaction: have something called once the outermost one is committed."""
        self._db.on_commit(call)

    def conversations(
        self, *, open_only: bool = False, tell: Callable[[str], object] = log.error
    ) -> list[Conversation]:
        """Conversations in the order of their creation.

        Args:
            tell: gets a sentence on each that is damaged, which is left out.
        """
        where = "WHERE is_open" if open_only else ""
        found = []
        for row in self._db.read(f"SELECT * FROM conversation {where} ORDER BY created, rowid"):
            try:
                found.append(self._conversation(row))
            except DamagedError as error:
                tell(str(error))
        return found

    def conversation(self, conversation_id: str) -> Conversation | None:
        rows = self._db.read("SELECT * FROM conversation WHERE id = ?", conversation_id)
        return self._conversation(rows[0]) if rows else None

    def save_conversation(self, conversation: Conversation) -> None:
        """Add it, or replace what can change of it."""
        values = {
            "id": conversation.id,
            "title": conversation.title,
            "system": conversation.system,
            "sampling": json.dumps(dict(conversation.sampling)),
            "user": conversation.user,
            "source": conversation.source,
            "created": conversation.created,
            "updated": conversation.updated,
            "leaf": conversation.leaf,
            "is_open": int(conversation.is_open),
        }
        self._db.write(_SAVE_CONVERSATION, values)

    def save_label(self, conversation: Conversation) -> None:
        """Replace its title and whether it is open; nothing if it was deleted.

        The rest is left alone: another program may have gone on with it since it was read.
        """
        self._db.write(
            "UPDATE conversation SET title = ?, is_open = ? WHERE id = ?",
            (conversation.title, int(conversation.is_open), conversation.id),
        )

    def delete_conversation(self, conversation_id: str) -> None:
        """Remove it with its messages; the journal keeps its requests."""
        self._db.write("DELETE FROM conversation WHERE id = ?", (conversation_id,))

    def forget(self, source: str, prefix: str, before: float, most: int) -> int:
        """Remove conversations that nobody has gone on with since a time (epoch seconds), the
        oldest first, with their messages; none that has a request that has not ended.

        Args:
            prefix: of their ids.
            most: at once.

        Returns:
            how many.
        """
        return self._db.write(_FORGET, (source, prefix, before, most))

    def shrink(self, pages: int) -> int:
        """As `Database.shrink` has it."""
        return self._db.shrink(pages)

    def messages(self, conversation_id: str) -> list[Message]:
        """All messages of all branches, in the order in which they were added."""
        rows = self._db.read(
            f"SELECT {_COLUMNS} FROM message WHERE conversation_id = ? ORDER BY number",
            conversation_id,
        )
        return self._messages(rows)

    def branch(self, leaf: str) -> list[Message]:
        """A message and those before it, oldest first; none where it is not there."""
        rows = self._db.read(_BRANCH, leaf)
        with self._db.decoding("the order of a conversation's messages"):
            if rows and rows[0]["parent_id"] is not None:
                raise KeyError(rows[0]["parent_id"])
        return self._messages(rows)

    def save_message(self, message: Message) -> None:
        """Add it, or replace what can change of it."""
        values = {
            "id": message.id,
            "conversation_id": message.conversation_id,
            "parent_id": message.parent_id,
            "role": message.role,
            "content": message.content,
            "thinking": message.thinking,
            "tool_use": _dump(message.tool_use),
            "tool_call_id": message.tool_call_id,
            "name": message.name,
            "created": message.created,
            "model": message.model,
            "request_id": message.request_id,
            "finish_reason": message.finish_reason,
            "error": dump_error(message.error),
            "usage": _dump(message.usage),
            "timings": _dump(message.timings),
        }
        self._db.write(_SAVE_MESSAGE, values)

    def save_context(self, message_id: str, context: Context) -> None:
        """Keep the token ids of the conversation up to and with this message.

        Only what follows the nearest context before it is written: whole contexts would grow with
        the square of the conversation's length.
        """
        with self.transaction():
            before = [
                row for row in self._db.read(_CONTEXTS, message_id) if row["id"] != message_id
            ]
            start = 0
            if before and before[0]["model_key"] == context.model_key:
                with suppress(DamagedError):  # which is not continued
                    start = _shared(self._token_ids(before), context.token_ids)
            ids = context.token_ids[start:]
            self._db.write(
                "UPDATE message SET context = ?, context_start = ?, context_messages = ?,"
                " model_key = ? WHERE id = ?",
                (_pack(ids), start, context.num_messages, context.model_key, message_id),
            )

    def context(self, message_id: str) -> tuple[str, Context] | None:
        """The token ids kept with this message, or else with the nearest before it, and its id."""
        rows = self._db.read(_CONTEXTS, message_id)
        if not rows:
            return None
        newest = rows[0]
        ids = self._token_ids(rows)
        return newest["id"], Context(newest["model_key"], ids, newest["context_messages"])

    def _conversation(self, row: sqlite3.Row) -> Conversation:
        with self._db.decoding(f"the conversation {row['title']!r}"):
            return _conversation(row)

    def _messages(self, rows: list[sqlite3.Row]) -> list[Message]:
        with self._db.decoding("a message of a conversation"):
            return [_message(row) for row in rows]

    def _token_ids(self, rows: list[sqlite3.Row]) -> tuple[int, ...]:
        with self._db.decoding("the context of a message"):
            return _token_ids(rows)


def _dump(value: ToolUse | Usage | Timings | None) -> str | None:
    return None if value is None else json.dumps(asdict(value))


def _pack(ids: tuple[int, ...]) -> bytes:
    """Token ids as little-endian 32-bit integers."""
    return struct.pack(f"<{len(ids)}i", *ids)


def _token_ids(rows: list[sqlite3.Row]) -> tuple[int, ...]:
    """The context of the first row, put together from those that it continues."""
    parts: list[tuple[int, ...]] = []
    end: int | None = None
    for row in rows:
        blob: bytes = row["context"]
        start: int = row["context_start"]
        ids = struct.unpack(f"<{len(blob) // 4}i", blob)
        if end is None or start < end:
            parts.append(ids if end is None else ids[: end - start])
            end = start
        if end == 0:
            break
    return tuple(chain.from_iterable(reversed(parts)))


def _shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many leading token ids are the same."""
    if one == other[: len(one)]:
        return len(one)
    differing = (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differing, len(other))


def _conversation(row: sqlite3.Row) -> Conversation:
    values: dict[str, Any] = dict(row)
    values["sampling"] = dict(json.loads(values["sampling"]))
    values["is_open"] = bool(values["is_open"])
    return Conversation(**values)


def _message(row: sqlite3.Row) -> Message:
    names = Message.__slots__
    values: dict[str, Any] = {name: row[name] for name in names}
    reason = values["finish_reason"]
    values["finish_reason"] = FinishReason(reason) if reason else None
    values["error"] = load_error(values["error"])
    if values["tool_use"] is not None:
        values["tool_use"] = ToolUse.load(json.loads(values["tool_use"]))
    for name, kind in (("usage", Usage), ("timings", Timings)):
        if values[name] is not None:
            values[name] = kind(**json.loads(values[name]))
    return Message(**values)
