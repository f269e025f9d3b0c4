"""Stopping: what Esc does, which is nothing that the key bar does not say."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import ClassVar

from textual import events, on
from textual.binding import Binding, BindingType
from textual.widgets import TextArea

from app.screens.chats.sessions import SessionList
from app.screens.chats.watched import WatchedChat
from app.screens.deck.branching import Branching
from widgets.glyphs import Glyphs

# Who presses Esc once more than it takes to leave something does not mean the reply.
STRAY_SECONDS = 1.0

_ESCAPES = ("stop", "stop_theirs", "keep", "back", "leave")


class Stopping(Branching):
    """The part of the deck that Esc is for. It leaves a panel, a dialog, an edit, or a chat that
    a panel brought. It stops a reply only where it is typed below that reply, and not just after it
    left something.

    Attributes:
        clock: monotonic seconds.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop", tooltip="End the reply being made", id="chat.stop"),
        Binding(
            "escape",
            "stop_theirs",
            "Stop theirs…",
            tooltip="Ask, then stop their reply",
            id="chat.stop_theirs",
        ),
        Binding(
            "escape", "keep", "Don't edit", tooltip="Leave a message as it was", id="chat.keep"
        ),
        Binding("escape", "back", "Back", tooltip="Back to the panel", id="view.back"),
        Binding("escape", "leave", "Chat", tooltip="Back to the prompt", id="view.leave"),
    ]

    def __init__(self, sessions: SessionList, glyphs: Glyphs) -> None:
        super().__init__(sessions, glyphs)
        self.clock: Callable[[], float] = time.monotonic
        self._left_at = -math.inf
        self._came_to: str | None = None  # what was in the prompt when a panel brought the chat
        self._said = ("", False, False)  # by the key bar

    def action_stop(self) -> None:
        """Stop the reply on view; what has come of it stays."""
        if self.sessions.current.chat.is_busy:
            self.sessions.current.chat.stop()
        else:
            self.notify("There is no reply to stop.")

    def action_stop_theirs(self) -> None:
        """Ask, then stop the reply that is being made in a watched chat."""
        session = self.sessions.current
        chat = session.chat
        if isinstance(chat, WatchedChat) and chat.request_id is not None:
            self.stop_theirs(chat.request_id, session.title, chat.conversation.user)

    def action_keep(self) -> None:
        """Leave the message as it was that is being edited."""
        self.chat.composer.go_back()
        self.forget_passing()
        self.leave_something()

    def action_leave(self) -> None:
        super().action_leave()
        self.leave_something()

    def come(self) -> None:
        """A panel has brought the chat on view: Esc goes back, until something is written here."""
        self._came_to = self.chat.prompt.text
        self.heed()

    def leave_something(self) -> None:
        """Note that something was left, so that the next Esc is not taken for more."""
        self._left_at = self.clock()
        self._came_to = None
        self.heed()

    def heed(self) -> None:
        """Have the key bar say what Esc does now, and whether a reply can be gone on with or made
        anew."""
        session = self.sessions.current
        acting = self._escape, session.chat.can_resume, session.can_regenerate
        if acting != self._said:
            self._said = acting
            self.refresh_bindings()

    def on_screen_resume(self) -> None:
        """A dialog or the palette was left."""
        self.leave_something()

    def on_descendant_blur(self, event: events.DescendantBlur) -> None:
        if event.widget is self.chat.prompt.area:
            self._came_to = None

    @on(TextArea.Changed)
    def stay(self) -> None:
        """What is written into the chat that a panel brought is meant for it, as Esc is then."""
        if self._came_to not in (None, self.chat.prompt.text):
            self._came_to = None
            self.heed()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in _ESCAPES:
            return action == self._escape
        return super().check_action(action, parameters)

    @property
    def _escape(self) -> str:
        """The action that Esc has now; none where it has none."""
        session = self.sessions.current
        # Esc comes back from the engine first, also where the chat is beside it.
        if self.has_class("-engine") or not self.chat.prompt.area.has_focus:
            return "leave"
        if self.chat.composer.editing is not None:
            return "keep"
        if self._came_to is not None:
            return "back"
        if not session.chat.is_busy or self.clock() - self._left_at < STRAY_SECONDS:
            return ""
        return "stop" if session.is_own else "stop_theirs"
