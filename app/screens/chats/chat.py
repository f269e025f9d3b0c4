"""ChatPane: the session on view, with the bar of all sessions and the prompt."""

from __future__ import annotations

import logging

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message

from app.screens.chats.composer import Composer
from app.screens.chats.entries import Entries, mark_of
from app.screens.chats.open_session import OpenSession, title_of
from app.screens.chats.sessions import SessionList
from app.screens.chats.sidebar import Sidebar
from app.screens.feeds.engine_watch import EngineWatch
from app.store.database import StoreError
from engine.api.status import EnginePhase, EngineStatus, ModelCard
from widgets.chat.chat_list import ChatList
from widgets.chat.chat_tabs import ChatTabs, Tab
from widgets.chat.prompt import Prompt
from widgets.chat.transcript import Transcript
from widgets.glyphs import Glyphs

log = logging.getLogger(__name__)


class ChatPane(Vertical):
    """Shows the current session of the list. It decides nothing about sessions."""

    DEFAULT_CSS = """
    ChatPane > ChatTabs { margin-bottom: 1; }
    """

    class Counted(Message):
        """The tokens of the draft are counted."""

    def __init__(
        self, sessions: SessionList, engine: EngineWatch, glyphs: Glyphs, *, id: str
    ) -> None:
        super().__init__(id=id)
        self._sessions = sessions
        self._engine = engine
        self._entries = Entries()
        self._shown: OpenSession | None = None
        self._origin = ""  # the title of the chat that the one on view was forked from
        self._title = ""
        self.bar = ChatTabs(glyphs)
        self.list = ChatList(glyphs, id="chats")
        self._sidebar = Sidebar(sessions, self.list)
        self.transcript = Transcript(glyphs)
        self.prompt = Prompt(glyphs)
        self.composer = Composer(sessions, engine, self.prompt)
        self._is_counted = True

    def compose(self) -> ComposeResult:
        yield self.bar
        yield self.transcript
        yield self.prompt

    def hint(self, send: str, newline: str, new: str, *, edit: str, resume: str, copy: str) -> None:
        """Set the keys that are shown to the user, as they are bound."""
        self.prompt.hint(send, newline, new)
        self._entries.new_key = self.composer.new_key = new
        self._entries.edit_key, self._entries.resume_key = edit, resume
        self.transcript.hint(copy)

    def update(self) -> None:
        """Bring the screen up to date with the list and its current session."""
        session, views = self._sessions.current, self._engine.views
        if session is not self._shown:
            self._shown = session
            self._origin = self._origin_of(session)
            self.composer.show(session)
        status, paused = self._engine.status, self._engine.paused
        entries = self._entries.of(session, views, status, paused, self.can_resume)
        self.transcript.show(session.key, entries, greeting(self._engine.status, self._engine.card))
        if session.is_own:
            defaults = self._sessions.defaults(self._engine.card)
            line = defaults.line(self._engine.model, session.settings)
        else:
            line = self._engine.model
        self.prompt.show_settings(line)
        was_counted, self._is_counted = self._is_counted, self.composer.update()
        if self._is_counted and not was_counted:
            self.post_message(self.Counted())
        title = session.title
        if self._origin and self._origin not in title:
            title += f" · fork of “{self._origin}”"
        if title != self._title:
            # Only if it has changed, for setting it repaints the pane.
            self._title = title
            self.border_title = Content(title)
        self.update_bar()

    def _origin_of(self, session: OpenSession) -> str:
        key = session.chat.conversation.forked_from
        try:
            origin = self._sessions.store.conversation(key) if key is not None else None
        except StoreError as error:
            log.error("%s", error)
            return ""
        return title_of(origin) if origin is not None else ""

    @property
    def can_resume(self) -> bool:
        """Whether the last reply of the chat on view can be continued."""
        session = self._sessions.current
        return session.chat.can_resume and not self.composer.is_full(session)

    def await_count(self) -> None:
        """Post `Counted` once the tokens of the draft are counted, or at once if they are
        already."""
        self._is_counted = False

    def update_bar(self) -> None:
        views, paused = self._engine.views, self._engine.paused
        tabs = [
            Tab(s.key, self._sessions.number_of(s), s.title, mark_of(s, views, paused), s.unread)
            for s in self._sessions.sessions
        ]
        self.bar.show(tabs, self._sessions.current.key)
        self._sidebar.update(views, paused)

    def sent(self) -> None:
        """Clear the prompt, because its message was sent and is in the history, and scroll to the
        reply."""
        self.composer.go_back()
        self.follow()

    def follow(self) -> None:
        """Scroll to the requested reply. The draft stays."""
        self.update()
        self.transcript.follow()


def greeting(status: EngineStatus, card: ModelCard | None) -> str:
    """The text that an empty conversation shows."""
    match status.phase:
        case EnginePhase.READY if card is not None and not card.has_chat_template:
            return (
                f"{status.model} is ready. It has no chat template: it completes the text of the "
                "chat, and need not answer."
            )
        case EnginePhase.READY:
            return f"{status.model} is ready. Ask anything."
        case EnginePhase.FAILED:
            return f"There is no model: {status.detail}\nCtrl+P, then Load model, loads another."
        case EnginePhase.STOPPED:
            return "The engine has stopped."
    name = status.model or "The model"
    return f"{name} is being loaded.\nYou can write already; what you send waits for it."
