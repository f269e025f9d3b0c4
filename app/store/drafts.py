"""Drafts: what is written in a chat and not sent."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from app.store.attachment import Attachment
from app.store.database import Database


@dataclass(frozen=True, slots=True)
class Draft:
    """A message that is not sent.

    Attributes:
        edited: the id of the message that it will stand beside; None if it is a new one.
    """

    text: str = ""
    attachments: tuple[Attachment, ...] = ()
    edited: str | None = None

    def __bool__(self) -> bool:
        return bool(self.text or self.attachments or self.edited)


class Drafts:
    """The table `draft`, with at most one row for a conversation.

    Args:
        clock: seconds since the epoch.

    Raises:
        StoreError: from every method.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._db = database
        self._clock = clock

    def of(self, conversation_id: str) -> Draft:
        """The draft of a conversation; an empty one if there is none."""
        rows = self._db.read("SELECT * FROM draft WHERE conversation_id = ?", conversation_id)
        if not rows:
            return Draft()
        with self._db.decoding("the draft of a chat"):
            files = json.loads(rows[0]["attachments"])
            attachments = tuple(Attachment(**file) for file in files)
        return Draft(rows[0]["content"], attachments, rows[0]["edited"])

    def save(self, conversation_id: str, draft: Draft, before: Draft) -> None:
        """Keep a draft; an empty one is removed.

        Args:
            before: the draft as it is kept. Attachments that have not changed are not written: they
                may be a megabyte beside a word that was typed.

        Raises:
            DeletedError: the conversation is not in the store.
        """
        if not draft:
            self._db.write("DELETE FROM draft WHERE conversation_id = ?", (conversation_id,))
            return
        values = (conversation_id, draft.text, draft.edited, self._clock())
        if draft.attachments == before.attachments and self._db.write(
            "UPDATE draft SET content = ?2, edited = ?3, updated = ?4 WHERE conversation_id = ?1",
            values,
        ):
            return
        files = json.dumps([asdict(attachment) for attachment in draft.attachments])
        self._db.write(
            "INSERT OR REPLACE INTO draft (conversation_id, content, edited, updated, attachments)"
            " VALUES (?, ?, ?, ?, ?)",
            (*values, files),
        )
