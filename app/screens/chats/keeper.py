"""ChatKeeper: closes, pins, archives, renames and deletes chats, and undoes that."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from enum import Enum

from app.screens.chats.open_session import title_of
from app.screens.chats.sessions import SessionList
from app.screens.chats.watched import held_by
from app.store.conversation import Conversation
from app.store.store import Store

UNDONE = 100  # the most changes that can be undone


class Change(Enum):
    """A change of a chat. The value is the word for it."""

    CLOSE = "closed"
    ARCHIVE = "archived"
    UNARCHIVE = "back from the archive"
    DELETE = "deleted"
    PIN = "pinned"
    UNPIN = "unpinned"


_PINNING = (Change.PIN, Change.UNPIN)


@dataclass(frozen=True, slots=True)
class Done:
    """One change that was made.

    Attributes:
        key: the chat's id.
        title: as a person sees it.
        was_open: whether the chat had a place on the screen.
        stopped: whether a running reply was ended.
        pinned_at: as the chat's, before it was unpinned.
    """

    change: Change
    key: str
    title: str
    was_open: bool
    stopped: bool = False
    pinned_at: float | None = None


class HeldError(Exception):
    """The chat's owner may continue it elsewhere; the message names them."""


class ChatKeeper:
    """Closes, pins, archives, renames and deletes chats, open or not. Callers show the errors.

    Raises:
        HeldError: from `check`, `archive`, `delete` and `rename`; then nothing was done.
        StoreError: from every method; then at most the chat was closed.
    """

    def __init__(self, sessions: SessionList, store: Store) -> None:
        self._sessions = sessions
        self._store = store
        self._done: deque[Done] = deque(maxlen=UNDONE)

    def check(self, key: str) -> None:
        """Raise `HeldError` if a chat may not be changed here."""
        if not self._sessions.is_held_elsewhere(key):
            return
        session = self._sessions.find(key)
        chat = session.chat.conversation if session is not None else self._store.conversation(key)
        if chat is not None:
            raise HeldError(held_by(chat.user))

    def close(self, key: str) -> Done | None:
        """Close a chat; None if it is not open, or is empty, so that nothing of it is stored."""
        session = self._sessions.find(key)
        if session is None:
            return None
        done = Done(Change.CLOSE, key, session.title, True)
        is_kept = session.is_own and session.is_stored
        self._sessions.close(session)
        return self._record(done) if is_kept else None

    def archive(self, key: str) -> Done | None:
        """Archive or unarchive a chat; None if it is not in the store."""
        self.check(key)
        chat = self._store.conversation(key)
        if chat is None:
            return None
        was_open = self._sessions.find(key) is not None
        if chat.is_archived:
            self._set_archived(chat, False)
            return self._record(Done(Change.UNARCHIVE, key, title_of(chat), was_open))
        stopped = self._close(key)
        self._set_archived(chat, True)
        return self._record(Done(Change.ARCHIVE, key, title_of(chat), was_open, stopped))

    def pin(self, key: str) -> Done | None:
        """Pin or unpin a chat; None if it is not in the store. It may be another user's: their list
        is not this one."""
        chat = self._store.conversation(key)
        if chat is None:
            return None
        before = chat.pinned_at
        self._set_pinned(chat, time.time() if before is None else None)
        change = Change.PIN if before is None else Change.UNPIN
        was_open = self._sessions.find(key) is not None
        return self._record(Done(change, key, title_of(chat), was_open, pinned_at=before))

    def delete(self, key: str) -> Done | None:
        """Delete a chat, ending its running reply; None if it is not in the store."""
        self.check(key)
        chat = self._store.conversation(key)
        was_open = self._sessions.find(key) is not None
        stopped = self._close(key)
        if chat is None:
            return None
        self._store.delete_conversation(key)
        return self._record(Done(Change.DELETE, key, title_of(chat), was_open, stopped))

    def rename(self, key: str, title: str) -> None:
        """Change the title of a chat; does nothing if the chat does not exist."""
        self.check(key)
        if session := self._sessions.find(key):
            self._sessions.rename(session, title)
        elif chat := self._store.conversation(key):
            chat.title, chat.is_named = title, True
            self._store.save_label(chat, "title", "is_named")

    def undo(self) -> Done | None:
        """Undo the last change that was not undone; None if there is none. A chat that was open
        is on view again.

        Raises:
            LookupError: the chat is gone for good. The change is forgotten.
        """
        if not self._done:
            return None
        done = self._done[-1]
        if done.change is Change.DELETE:
            found = self._store.restore_conversation(done.key)
        else:
            chat = self._store.conversation(done.key)
            found = chat is not None
            if chat is not None and done.change is Change.ARCHIVE:
                self._set_archived(chat, False)
            elif chat is not None and done.change is Change.UNARCHIVE:
                self._close(done.key)
                self._set_archived(chat, True)
            elif chat is not None and done.change in _PINNING:
                self._set_pinned(chat, done.pinned_at)
        self._done.pop()
        if not found:
            raise LookupError(done.title)
        if done.was_open and done.change not in (Change.UNARCHIVE, *_PINNING):
            self._sessions.open(done.key)
        return done

    def _close(self, key: str) -> bool:
        """Close a chat and stop its reply; returns whether a reply was running. The reply of a chat
        that others hold continues."""
        session = self._sessions.find(key)
        if session is not None:
            self._sessions.close(session)
        running = next((s for s in self._sessions.closed if s.key == key), None)
        if running is None:
            return False
        self._sessions.closed.remove(running)
        running.chat.close()
        return True

    def _set_archived(self, chat: Conversation, is_archived: bool) -> None:
        chat.is_archived = is_archived
        if is_archived:
            chat.is_open = False
        self._store.save_label(chat, "is_archived", "is_open")
        if session := self._sessions.find(chat.id):
            session.chat.conversation.is_archived = is_archived

    def _set_pinned(self, chat: Conversation, pinned_at: float | None) -> None:
        chat.pinned_at = pinned_at
        self._store.save_label(chat, "pinned_at")
        if session := self._sessions.find(chat.id):
            session.chat.conversation.pinned_at = pinned_at

    def _record(self, done: Done) -> Done:
        self._done.append(done)
        return done
