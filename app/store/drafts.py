"""Drafts: unsent messages of chats."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from app.store.conversation import Attachment
from app.store.database import Database


@dataclass(frozen=True, slots=True)
class Draft:
    """An unsent message.

    Attributes:
        edited: the id of the message that it will be an alternative to; None for a new one.
        aside: the draft before that message was edited; None if there was none.
    """

    text: str = ""
    attachments: tuple[Attachment, ...] = ()
    edited: str | None = None
    aside: Draft | None = None

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
            row = rows[0]
            aside = None if row["aside"] is None else json.loads(row["aside"])
            if aside is not None:
                aside = Draft(aside["text"], _attachments(aside["attachments"]))
            files = _attachments(json.loads(row["attachments"]))
        return Draft(row["content"], files, row["edited"], aside)

    def save(self, conversation_id: str, draft: Draft, before: Draft) -> None:
        """Store a draft; an empty one is removed.

        Args:
            before: the stored draft. Attachments and `aside` are only written if they have changed:
                they may be a megabyte beside one typed word.

        Raises:
            DeletedError: the conversation is not in the store.
        """
        if not draft:
            self._db.write("DELETE FROM draft WHERE conversation_id = ?", (conversation_id,))
            return
        values = (conversation_id, draft.text, draft.edited, self._clock())
        is_same = (draft.attachments, draft.aside) == (before.attachments, before.aside)
        if is_same and self._db.write(
            "UPDATE draft SET content = ?2, edited = ?3, updated = ?4 WHERE conversation_id = ?1",
            values,
        ):
            return
        files = json.dumps([asdict(attachment) for attachment in draft.attachments])
        aside = None if draft.aside is None else json.dumps(asdict(draft.aside))
        self._db.write(
            "INSERT OR REPLACE INTO draft"
            " (conversation_id, content, edited, updated, attachments, aside)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (*values, files, aside),
        )


def _attachments(files: list[dict[str, str]]) -> tuple[Attachment, ...]:
    return tuple(Attachment(**file) for file in files)
