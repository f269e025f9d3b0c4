"""Store: conversations, their messages and the request journal in one SQLite file."""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path

from app.store.batches import Batches
from app.store.branches import Branches
from app.store.contexts import Contexts
from app.store.conversation import Conversation, Message
from app.store.database import DamagedError, Database, StoreError
from app.store.drafts import Drafts
from app.store.files import Files
from app.store.journal import Journal
from app.store.leases import Leases
from app.store.presets import Presets, Prompts
from app.store.rows import (
    MESSAGE_COLUMNS,
    SAVE_CONVERSATION,
    SAVE_MESSAGE,
    UP,
    conversation_values,
    message_values,
    read_conversation,
    read_message,
)
from app.store.search import Search
from app.store.summaries import Summaries
from app.system.paths import CRASHES
from app.system.private import create_file, create_folder, tighten, tighten_folder

log = logging.getLogger(__name__)

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

_LABEL = frozenset(("title", "number", "is_named", "is_open", "is_archived", "pinned_at"))

# Conversations deleted longer ago are removed when a program opens the store.
UNDO_SECONDS = 3600.0

_SENT = """
SELECT content FROM message JOIN conversation ON conversation.id = conversation_id
WHERE role = 'user' AND content <> '' AND source = 'screen' AND deleted_at IS NULL
GROUP BY content ORDER BY max(message.number) DESC LIMIT ?
"""

_BRANCH = f"""
{UP}
SELECT {MESSAGE_COLUMNS} FROM up JOIN message ON message.id = up.id ORDER BY distance DESC
"""


class Store:
    """One SQLite file, for screen and gateways, on any thread, beside other processes.

    Opening the store ends the unfinished work of dead processes as `RESTARTED`.

    Args:
        busy_seconds: as in `Database`.

    Attributes:
        journal: of the requests.
        search: finds words in titles and messages.
        summaries: a row of each chat, and which one is shown.
        branches: the branching of conversations.
        contexts: their token ids.
        presets, prompts: the user's named settings and texts.
        drafts: unsent messages.
        files: files of lines, uploaded or written by batches.
        batches: requests of files that are answered one by one.

    Raises:
        StoreError: from every method too.
    """

    def __init__(self, path: Path, busy_seconds: float | None = None) -> None:
        leases = path.with_name(f"{path.name}-leases")
        try:
            create_folder(path.parent)
            # Only the owner may read the chats; SQLite's other files copy its mode.
            create_file(path)
            tighten(*(path.with_name(f"{path.name}{end}") for end in ("", "-wal", "-shm")), leases)
            tighten_folder(path.parent, (path.name, CRASHES))
            self._leases = Leases(leases)
        except OSError as error:
            raise StoreError(f"{path}: it cannot be opened ({error.strerror or error})") from None
        try:
            self._db = Database(path, busy_seconds)
            self.presets = Presets(self._db)
            self.prompts = Prompts(self._db)
            self.drafts = Drafts(self._db)
            self.branches = Branches(self._db)
            self.contexts = Contexts(self._db)
            self.search = Search(path)
            self.summaries = Summaries(self._db)
            self.journal = Journal(self._db, self._leases)
            self.journal.end_orphans()
            self.files = Files(self._db, self._leases)
            self.batches = Batches(self._db, self._leases, self.files)
            self._purge(time.time() - UNDO_SECONDS)
        except StoreError:
            self._leases.release()
            raise

    def close(self) -> None:
        self.search.close()
        self._db.close()
        self._leases.release()

    def transaction(self) -> AbstractContextManager[None]:
        """Commit all writes within, or none.

        Transactions nest: an inner one that raises is rolled back alone, and the outer one may go
        on.
        """
        return self._db.transaction()

    def on_commit(self, call: Callable[[], object]) -> None:
        """Call a function once the outermost transaction is committed; only within a
        transaction."""
        self._db.on_commit(call)

    def conversations(
        self, *, open_only: bool = False, tell: Callable[[str], object] = log.error
    ) -> list[Conversation]:
        """Conversations in order of creation, including archived ones.

        Args:
            tell: called with a sentence on each damaged one, which is left out.
        """
        also = "AND is_open" if open_only else ""
        found = []
        for row in self._db.read(
            f"SELECT * FROM conversation WHERE deleted_at IS NULL {also} ORDER BY created, rowid"
        ):
            try:
                found.append(self._conversation(row))
            except DamagedError as error:
                tell(str(error))
        return found

    def failed(self) -> frozenset[str]:
        """The ids of the open conversations whose last reply failed."""
        rows = self._db.read(
            "SELECT conversation.id FROM conversation JOIN message ON message.id = leaf"
            " WHERE is_open AND finish_reason = 'error'"
        )
        return frozenset(row["id"] for row in rows)

    def conversation(self, conversation_id: str) -> Conversation | None:
        rows = self._db.read(
            "SELECT * FROM conversation WHERE id = ? AND deleted_at IS NULL", conversation_id
        )
        return self._conversation(rows[0]) if rows else None

    def save_conversation(self, conversation: Conversation) -> None:
        """Add it, or update what a turn changes: title, number, leaf, and the time of its last use.

        If another program has used its number meanwhile, it gets another one.
        """
        with self.transaction():
            if self._is_taken(conversation):
                self.number(conversation)
            self._db.write(SAVE_CONVERSATION, conversation_values(conversation))

    def number(self, *conversations: Conversation, taken: Collection[int] = ()) -> None:
        """Assign to each the smallest number, from 1 on, that is free; saving it reserves the
        number.

        Args:
            taken: numbers of conversations that are not saved yet.
        """
        ids = {conversation.id for conversation in conversations}
        rows = self._db.read("SELECT id, number FROM conversation WHERE number IS NOT NULL")
        used = {row["number"] for row in rows if row["id"] not in ids}.union(taken)
        free = (n for n in count(1) if n not in used)
        for conversation in conversations:
            conversation.number = next(free)

    def save_label(self, conversation: Conversation, *names: str) -> None:
        """Update some of its title, its number, whether it is named, open or archived, and when it
        was pinned; does nothing if it was deleted.

        Other columns stay: another program may have changed them since it was read.
        """
        assert _LABEL.issuperset(names)
        columns = ", ".join(f"{name} = :{name}" for name in names)
        with self.transaction():
            if "number" in names and self._is_taken(conversation):
                self.number(conversation)
            self._db.write(
                f"UPDATE conversation SET {columns} WHERE id = :id AND deleted_at IS NULL",
                conversation_values(conversation),
            )

    def save_settings(self, conversation: Conversation) -> None:
        """Update its system prompt and its sampling; does nothing if it was deleted."""
        self._db.write(
            "UPDATE conversation SET system = ?, sampling = ? WHERE id = ?",
            (conversation.system, json.dumps(dict(conversation.sampling)), conversation.id),
        )

    def delete_conversation(self, conversation_id: str) -> None:
        """Delete it with its messages; the journal keeps its requests.

        It can be restored for `UNDO_SECONDS`, and then until a program opens this store. Nothing
        can be added to it meanwhile.
        """
        deletion = "UPDATE conversation SET deleted_at = ? WHERE id = ? AND deleted_at IS NULL"
        self._db.removing(lambda: self._db.write(deletion, (time.time(), conversation_id)))

    def restore_conversation(self, conversation_id: str) -> bool:
        """Undo the deletion; False if it is gone for good."""
        changed = self._db.write(
            "UPDATE conversation SET deleted_at = NULL WHERE id = ?", (conversation_id,)
        )
        return bool(changed)

    def free_id(self, conversation_id: str) -> None:
        """Remove for good a deleted conversation with this id, so that another one can have it."""
        self._db.write(
            "DELETE FROM conversation WHERE id = ? AND deleted_at IS NOT NULL", (conversation_id,)
        )

    def forget(self, source: str, prefix: str, before: float, most: int) -> int:
        """Remove conversations that were not continued since a time (epoch seconds), oldest first,
        with their messages, but none with an unfinished request.

        Args:
            prefix: of their ids.
            most: the limit of one call.

        Returns:
            the number removed.
        """
        return self._db.removing(lambda: self._db.write(_FORGET, (source, prefix, before, most)))

    def shrink(self, pages: int) -> int:
        """As `Database.shrink`."""
        return self._db.shrink(pages)

    def messages(self, conversation_id: str) -> list[Message]:
        """All messages of all branches, in order of creation."""
        rows = self._db.read(
            f"SELECT {MESSAGE_COLUMNS} FROM message WHERE conversation_id = ? ORDER BY number",
            conversation_id,
        )
        return self._messages(rows)

    def branch(self, leaf: str) -> list[Message]:
        """A message and its ancestors, oldest first; none if it does not exist."""
        rows = self._db.read(_BRANCH, leaf)
        with self._db.decoding("the order of a conversation's messages"):
            if rows and rows[0]["parent_id"] is not None:
                raise KeyError(rows[0]["parent_id"])
        return self._messages(rows)

    def sent(self, most: int) -> list[str]:
        """The messages that the user sent in chats of the screen, the newest first, each text
        once."""
        return [row["content"] for row in self._db.read(_SENT, most)]

    def message(self, message_id: str) -> Message | None:
        found = self._messages(
            self._db.read(f"SELECT {MESSAGE_COLUMNS} FROM message WHERE id = ?", message_id)
        )
        return found[0] if found else None

    def save_message(self, message: Message) -> None:
        """Add it, or update its variable fields."""
        self._db.write(SAVE_MESSAGE, message_values(message))

    def _purge(self, before: float) -> None:
        """Remove for good conversations that were deleted before a time (epoch seconds)."""
        # Check first, because a start should not wait for a writer.
        if self._db.read("SELECT 1 FROM conversation WHERE deleted_at < ? LIMIT 1", before):
            self._db.write("DELETE FROM conversation WHERE deleted_at < ?", (before,))

    def _is_taken(self, conversation: Conversation) -> bool:
        """Whether another conversation has its number."""
        wanted = conversation.number
        return bool(
            self._db.read(
                "SELECT 1 FROM conversation WHERE number = ? AND id <> ?", wanted, conversation.id
            )
        )

    def _conversation(self, row: sqlite3.Row) -> Conversation:
        with self._db.decoding(f"the conversation {row['title']!r}"):
            return read_conversation(row)

    def _messages(self, rows: list[sqlite3.Row]) -> list[Message]:
        with self._db.decoding("a message of a conversation"):
            return [read_message(row) for row in rows]
