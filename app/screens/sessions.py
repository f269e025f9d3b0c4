"""SessionList: the open conversations, in order, with one on view."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from app.session import ChatSession
from app.store import Conversation, Store
from engine.client import EngineClient

UNTITLED = "new chat"


@dataclass(slots=True, eq=False)
class OpenSession:
    """A chat with what the screen keeps of it.

    Attributes:
        draft: what is written and not sent.
        unread: text came that has not been on view.
    """

    chat: ChatSession
    draft: str = ""
    unread: bool = False

    @property
    def key(self) -> str:
        return self.chat.conversation.id

    @property
    def title(self) -> str:
        return self.chat.conversation.title or UNTITLED

    @property
    def history(self) -> tuple[str, ...]:
        """What the user sent, oldest first."""
        return tuple(m.content for m in self.chat.messages if m.role == "user")


class SessionList:
    """Every session streams whether it is on view or not. There is always one on view.

    Args:
        system: system prompt of new conversations.
        sampling: under each conversation's own, over the model's defaults.
    """

    def __init__(
        self,
        client: EngineClient,
        store: Store,
        *,
        system: str = "",
        sampling: Mapping[str, object] | None = None,
    ) -> None:
        self._client = client
        self._store = store
        self._system = system
        self._sampling = dict(sampling or {})
        self.sessions = [self._open(kept) for kept in store.conversations(open_only=True)]
        if not self.sessions:
            self.sessions = [self._open(self._blank())]
        self.current = max(self.sessions, key=lambda s: s.chat.conversation.updated)

    @property
    def index(self) -> int:
        return self.sessions.index(self.current)

    @property
    def num_busy(self) -> int:
        """Sessions whose reply is being made."""
        return sum(session.chat.is_busy for session in self.sessions)

    def find(self, key: str) -> OpenSession | None:
        return next((s for s in self.sessions if s.key == key), None)

    def new(self) -> None:
        """Open an empty conversation; one that is empty already is taken instead."""
        empty = (s for s in self.sessions if not s.chat.messages)
        session = next(empty, None)
        if session is None:
            session = self._open(self._blank())
            self.sessions.append(session)
        self.go_to(session)

    def go_to(self, session: OpenSession) -> None:
        self.current = session
        session.unread = False

    def step(self, places: int) -> None:
        """Go to a neighbour; beyond the last is the first."""
        self.go_to(self.sessions[(self.index + places) % len(self.sessions)])

    def open(self, conversation_id: str) -> bool:
        """Go to a conversation of the store, opening it if need be; False if there is none.

        Raises:
            StoreError: it cannot be read or written.
        """
        session = self.find(conversation_id)
        if session is None:
            conversation = self._store.conversation(conversation_id)
            if conversation is None:
                return False
            conversation.is_open = True
            self._store.save_label(conversation)
            session = self._open(conversation)
            self.sessions.append(session)
        self.go_to(session)
        return True

    def close(self, session: OpenSession) -> None:
        """Take a conversation off the screen, stopping its reply; the store keeps it.

        Raises:
            StoreError: the store could not be told, so that it is open again after a restart.
        """
        index = self.sessions.index(session)
        session.chat.close()
        self.sessions.remove(session)
        if not self.sessions:
            self.sessions.append(self._open(self._blank()))
        if session is self.current:
            self.go_to(self.sessions[min(index, len(self.sessions) - 1)])
        session.chat.conversation.is_open = False
        if session.chat.messages:
            self._store.save_label(session.chat.conversation)

    def delete(self, session: OpenSession) -> None:
        """Close a conversation and forget it for good.

        Raises:
            StoreError: it could not be deleted.
        """
        self.close(session)
        self._store.delete_conversation(session.key)

    def rename(self, session: OpenSession, title: str) -> None:
        """Raises StoreError if the store could not be told."""
        session.chat.conversation.title = title
        if session.chat.messages:
            self._store.save_label(session.chat.conversation)

    def kept(self) -> list[Conversation]:
        """All conversations of the store, the last used first.

        Raises:
            StoreError: they cannot be read.
        """
        return sorted(self._store.conversations(), key=lambda c: c.updated, reverse=True)

    def poll(self) -> set[str]:
        """Take in what the engine has given; returns the keys of the sessions that have news."""
        news = set()
        for session in self.sessions:
            if session.chat.poll() is not None:
                news.add(session.key)
                session.unread = session is not self.current
        return news

    def stop_all(self) -> None:
        """Ask the engine to end every reply."""
        for session in self.sessions:
            session.chat.stop()

    def close_all(self) -> None:
        """End what the engine has not ended. The conversations stay open for the next start."""
        for session in self.sessions:
            session.chat.close()

    def _blank(self) -> Conversation:
        return Conversation(system=self._system, updated=time.time())

    def _open(self, conversation: Conversation) -> OpenSession:
        chat = ChatSession(self._client, conversation, self._store, self._sampling)
        return OpenSession(chat)
