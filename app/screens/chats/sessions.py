"""SessionList: the open conversations, own and watched ones, in order, with one of them on view."""

from __future__ import annotations

import logging
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from app.conversations.session import ChatSession
from app.gateway.sources import THEIRS
from app.screens.chats.chat_settings import ChatSettings, Defaults
from app.screens.chats.numbering import Numbering
from app.screens.chats.open_session import OpenSession
from app.screens.chats.watched import WatchedChat
from app.store.conversation import Conversation
from app.store.database import StoreError
from app.store.store import Store
from engine.api.client import EngineClient
from engine.api.lifecycle import FinishReason
from engine.api.snapshot import RequestView
from engine.api.status import ModelCard
from widgets.chat_number import ChatNumber

if TYPE_CHECKING:
    from app.gateway.http.view import HttpSide
    from app.gateway.mqtt.view import MqttSide
    from app.gateway.view import Transcript, Transcripts

log = logging.getLogger(__name__)


class SessionList:
    """The open sessions. Each of them streams, whether it is on view or not. One of them is always
    on view.

    Args:
        system: the system prompt of new chats.
        sampling: sampling parameters that hold where a conversation has none of its own. They
            replace the model's defaults.
        gateway: has the chats that are held over MQTT; None without MQTT.
        http: has those that are held over HTTP; None without HTTP.

    Attributes:
        system: as above.
        store: the store of the chats.
        sessions: the open sessions, in the order of their tabs.
        closed: those that were closed while their reply was running, until it has ended.
        current: the session on view.
        numbering: the screen's numbers of chats, those of the engine's requests too.
        notices: sentences that are still to be shown to the user: about each chat that was closed
            because it cannot be read, each that can no longer be saved, and each closed one whose
            reply failed.
    """

    def __init__(
        self,
        client: EngineClient,
        store: Store,
        *,
        system: str = "",
        sampling: Mapping[str, object] | None = None,
        gateway: MqttSide | None = None,
        http: HttpSide | None = None,
    ) -> None:
        self.client = client
        self.gateway = gateway
        self.http = http
        self._theirs = [one for one in (gateway, http) if one is not None]
        self.numbering = Numbering(self._chat_of)
        self.store = store
        self.system = system
        self._sampling = dict(sampling or {})
        self.notices: list[str] = []
        self.ended: list[str] = []
        kept = store.conversations(open_only=True, tell=self.notices.append)
        failed = store.failed()
        self.sessions: list[OpenSession] = []
        self.closed: list[OpenSession] = []
        own = [conversation for conversation in kept if conversation.source not in THEIRS]
        if new := [conversation for conversation in own if conversation.number is None]:
            self._number(new)
        for conversation in own:
            session = self._open(conversation)
            session.had_failed = conversation.id in failed
            self.sessions.append(session)
        self.current = self._stored_current() or self._newest()
        self.go_to(self.current)

    @property
    def num_busy(self) -> int:
        """The number of sessions with a running reply."""
        return sum(session.chat.is_busy for session in self._held)

    @property
    def num_own_busy(self) -> int:
        """The number of sessions held here with a running reply."""
        return sum(session.chat.is_busy for session in self._held if session.is_own)

    @property
    def _held(self) -> list[OpenSession]:
        return [*self.sessions, *self.closed]

    def number_of(self, session: OpenSession) -> ChatNumber:
        """The number of an open chat, which it keeps."""
        return self.numbering.number_of(session.chat.conversation)

    def numbered(self, number: int) -> OpenSession | None:
        """The open chat of the user that has this number."""
        return next((s for s in self.sessions if s.chat.conversation.number == number), None)

    def find(self, key: str) -> OpenSession | None:
        return next((s for s in self.sessions if s.key == key), None)

    def new(self) -> None:
        """Open an empty conversation. If one is open and empty already, go to that."""
        self.go_to(self.empty())

    def empty(self) -> OpenSession:
        """An empty conversation that is open; if there is none, one is opened."""
        empty = (s for s in self.sessions if s.is_own and s.is_empty and not s.draft)
        session = next(empty, None)
        if session is None:
            session = self._open(self._blank())
            self.sessions.append(session)
        return session

    def go_to(self, session: OpenSession) -> None:
        """Read the messages of a session and put it on view. If they cannot be read, `notices` says
        so, and the previous session stays on view."""
        try:
            session.read()
        except StoreError as error:
            self.notices.append(str(error))
            self.sessions.remove(session)
            if self.current not in self.sessions:
                self.go_to(self._newest())
            return
        if session is not self.current:
            self._store_current(session)  # at once, for the program may be killed
        self.current = session
        session.unread = False

    def step(self, places: int) -> None:
        """Go forward by so many places; after the last session comes the first."""
        self.go_to(self.sessions[(self.sessions.index(self.current) + places) % len(self.sessions)])

    def open(self, conversation_id: str) -> bool:
        """Go to a conversation, opening it from the store if need be; False if there is none.

        Raises:
            StoreError: the store cannot be read or written.
        """
        session = self.find(conversation_id)
        if session is None:
            session = next((s for s in self.closed if s.key == conversation_id), None)
            if session is not None:
                self.closed.remove(session)
            else:
                conversation = self.store.conversation(conversation_id)
                if conversation is None:
                    return False
                is_theirs = conversation.source in THEIRS
                session = self._watch(conversation) if is_theirs else self._open(conversation)
                session.read()
            self.sessions.append(session)
            if session.is_own:
                session.chat.conversation.is_open = True
                self.store.save_label(session.chat.conversation, "is_open", "number")
        self.go_to(session)
        return True

    def watch(self, request_id: str) -> bool:
        """Go to the chat of a request that came over a gateway; False if the gateway no longer has
        it.

        Args:
            request_id: the engine's id.
        """
        gateway, transcript = self._held_elsewhere(request_id)
        if transcript is None:
            return False
        session = self.find(transcript.conversation.id)
        if session is None:
            chat = WatchedChat(self.client, transcript.conversation, (), gateway, request_id)
            session = OpenSession(chat)
            self.sessions.append(session)
        elif isinstance(session.chat, WatchedChat):
            session.chat.follow(request_id)
        self.go_to(session)
        return True

    def meet(self, requests: Iterable[RequestView]) -> None:
        """Make each watched chat follow its newest request."""
        watched = {s.key: s.chat for s in self.sessions if isinstance(s.chat, WatchedChat)}
        theirs = [view for view in requests if view.origin.conversation in watched]
        for view in sorted(theirs, key=lambda view: view.ordinal):
            watched[view.origin.conversation].follow(view.request_id)

    def close(self, session: OpenSession) -> None:
        """Close a conversation; the store keeps it. If it belongs to this screen, its running reply
        continues and is stored too.

        Raises:
            StoreError: the store could not note it, so the conversation is open again after a
                restart.
        """
        index = self.sessions.index(session)
        if session.is_own and session.chat.is_busy:
            self.closed.append(session)
        else:
            session.chat.close()
        self.sessions.remove(session)
        if not self.sessions:
            self.sessions.append(self._open(self._blank()))
        if session is self.current:
            self.go_to(self.sessions[min(index, len(self.sessions) - 1)])
        if not session.is_own:
            return
        session.chat.conversation.is_open = False
        if session.is_stored:
            self.store.save_label(session.chat.conversation, "is_open")

    def rename(self, session: OpenSession, title: str) -> None:
        """Give a conversation another title.

        Raises:
            StoreError: the store could not note it.
        """
        session.chat.conversation.title = title
        session.chat.conversation.is_named = True
        if session.is_stored:
            self.store.save_label(session.chat.conversation, "title", "is_named")

    def defaults(self, card: ModelCard | None) -> Defaults:
        """The settings of a chat that states none.

        Args:
            card: card of the loaded model; None if there is none.
        """
        return Defaults(card, self._sampling)

    def configure(self, session: OpenSession, settings: ChatSettings) -> None:
        """Change the settings of a chat; they apply from its next turn on.

        Raises:
            StoreError: the store could not note it.
        """
        conversation = session.chat.conversation
        conversation.system, conversation.sampling = settings.system, settings.sampling
        self.store.save_settings(conversation)

    def failures(self, known: Container[str]) -> dict[str, str]:
        """Why the last turns of chats of this screen failed, by the chats' ids.

        Args:
            known: the requests in the engine's snapshot, which are left out: it has none that was
                refused.
        """
        return {
            session.key: session.trouble
            for session in self.sessions
            if session.is_read and session.has_failed and session.last_request not in known
        }

    def poll(self) -> set[str]:
        """Drain the streams of all sessions; returns the keys of those that have news."""
        news = set()
        for session in self._held:
            if session.chat.poll() is not None:
                news.add(session.key)
                session.unread = session is not self.current
            unsaved = session.chat.unsaved
            if unsaved and not session.was_unsaved:
                self.notices.append(f"“{session.title}” is not saved: {unsaved}")
            session.was_unsaved = bool(unsaved)
        for session in [one for one in self.closed if not one.chat.is_busy]:
            self.closed.remove(session)
            if trouble := session.trouble:
                self.notices.append(f"“{session.title}”, which is closed: {trouble}")
            elif session.chat.messages[-1].finish_reason is not FinishReason.ABORT:
                self.ended.append(session.title)
        return news

    def stop_all(self) -> None:
        """Ask the engine to stop every running reply of this screen."""
        for session in self._held:
            if session.is_own:
                session.chat.stop()

    def close_all(self) -> None:
        """Close every chat, ending the running replies that are held here. The conversations stay
        as they are, open or closed, for the next start."""
        for session in self._held:
            session.chat.close()
        self._store_current(self.current)

    def _blank(self) -> Conversation:
        """Make an empty conversation, with the preset for new chats, or with the settings that the
        program was started with."""
        settings = ChatSettings(self.system)
        try:
            name = self.store.presets.default()
            kept = {preset.name: preset for preset in self.store.presets.all()}
            if name in kept:
                settings = ChatSettings(kept[name].system, kept[name].sampling)
        except StoreError as error:
            log.error("%s", error)
        return Conversation(system=settings.system, sampling=settings.sampling, updated=time.time())

    def _open(self, conversation: Conversation) -> OpenSession:
        if conversation.number is None:
            opened = (session.chat.conversation.number for session in self.sessions)
            self.store.number(conversation, taken={n for n in opened if n is not None})
        return OpenSession(ChatSession(self.client, conversation, self.store, self._sampling))

    def _number(self, new: Sequence[Conversation]) -> None:
        """Number chats of the store that were never on a screen."""
        self.store.number(*new)
        # Where the store is locked, it keeps their numbers from another start on.
        with suppress(StoreError), self.store.transaction():
            for conversation in new:
                self.store.save_label(conversation, "number")

    def _newest(self) -> OpenSession:
        """The session that was used last. If none is open, one is opened."""
        if not self.sessions:
            self.sessions.append(self._open(self._blank()))
        return max(self.sessions, key=lambda s: s.chat.conversation.updated)

    def _chat_of(self, request_id: str) -> Conversation | None:
        """The chat whose newest request this is, among the open chats and those of the gateways;
        None if there is none."""
        for session in self._held:
            if session.last_request == request_id:
                return session.chat.conversation
        _, transcript = self._held_elsewhere(request_id)
        return transcript.conversation if transcript else None

    def is_held_elsewhere(self, key: str) -> bool:
        """Whether a gateway has a chat, so that its user may continue it."""
        return any(gateway.holds(key) for gateway in self._theirs)

    def _held_elsewhere(self, request_id: str) -> tuple[Transcripts | None, Transcript | None]:
        """The gateway over which a request came, and its chat."""
        for gateway in self._theirs:
            if (transcript := gateway.transcript(request_id)) is not None:
                return gateway, transcript
        return None, None

    def _watch(self, conversation: Conversation) -> OpenSession:
        messages = self.store.branch(conversation.leaf) if conversation.leaf else ()
        return OpenSession(WatchedChat(self.client, conversation, messages, self.gateway))

    def _stored_current(self) -> OpenSession | None:
        """The session that was on view last; None if that is not known, or it is not open."""
        try:
            return self.find(self.store.summaries.current())
        except StoreError as error:
            log.error("%s", error)
            return None

    def _store_current(self, session: OpenSession) -> None:
        """Store which session is on view, for the next start. If that fails, another one is shown
        then, which is only logged."""
        try:
            self.store.summaries.set_current(session.key)
        except StoreError as error:
            log.error("which chat is on view is not kept: %s", error)
