"""Conversing: opens, closes, names, deletes and exports chats for the user."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType

from app.screens.chats.chat import ChatPane
from app.screens.chats.export import as_markdown, file_name
from app.screens.chats.open_session import OpenSession
from app.screens.chats.sessions import SessionList
from app.screens.chats.watched import WatchedChat
from app.screens.dialogs.ask_text import AskText
from app.screens.dialogs.confirm import Confirm
from app.screens.dialogs.find_chat import FindChat
from app.screens.steering import Steering
from app.store.database import StoreError
from widgets.chat.chat_tabs import ChatTabs
from widgets.glyphs import Glyphs


class Conversing(Steering):
    """The part of the deck that deals with chats as a whole; `Deck` deals with what is said
    in them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+w", "close", "Close chat", show=False, id="chat.close"),
        Binding("ctrl+pageup", "step(-1)", "Previous chat", show=False, id="chat.previous"),
        Binding("ctrl+pagedown,f4", "step(1)", "Next chat", show=False, id="chat.next"),
        *(
            Binding(f"alt+{n}", f"pick({n})", "Chat", show=False, id=f"chat.{n}")
            for n in range(1, 10)
        ),
    ]

    def __init__(self, sessions: SessionList, glyphs: Glyphs) -> None:
        super().__init__(sessions, glyphs)
        self.chat = ChatPane(sessions, self.engine, glyphs, id="chat")

    def switched(self) -> None:
        """Show the chat that is on view now."""
        raise NotImplementedError

    @on(ChatTabs.NewWanted)
    def action_new(self) -> None:
        self.sessions.new()
        self.switched()

    def action_step(self, places: int) -> None:
        self.sessions.step(places)
        self.switched()

    def action_pick(self, number: int) -> None:
        """Go to the open chat of this number."""
        session = self.sessions.numbered(number)
        if session is None:
            self.notify(f"No open chat has the number {number}.")
            return
        self.sessions.go_to(session)
        self.switched()

    @on(ChatTabs.Picked)
    def pick_tab(self, event: ChatTabs.Picked) -> None:
        self.open(event.key)

    def open(self, conversation_id: str) -> None:
        """Go to a chat, opening it if need be."""
        try:
            found = self.sessions.open(conversation_id)
        except StoreError as error:
            self.notify(str(error), severity="error")
            return
        if found:
            self.switched()
        else:
            self.notify("This chat is not in the store.", severity="warning")

    def action_close(self) -> None:
        session = self.sessions.current
        try:
            self.sessions.close(session)
        except StoreError as error:
            self.notify(str(error), severity="error")
        if not session.is_own:
            goes_on = "goes on; it " if session.chat.is_busy else ""
            self.notify(f"“{session.title}” {goes_on}is watched no more.")
        elif session.chat.is_busy:
            self.notify(f"Closed “{session.title}”; its reply goes on, and F3 finds it again.")
        elif session.chat.messages:
            self.notify(f"Closed “{session.title}”; F3 finds it again.")
        self.chat.forget(session)
        self.switched()

    def action_delete(self) -> None:
        """Delete the chat on view for good, once the user has confirmed that."""
        session = self.sessions.current
        if self._is_held_elsewhere(session):
            return

        def delete(sure: bool | None) -> None:
            if sure:
                try:
                    self.sessions.delete(session)
                except StoreError as error:
                    self.notify(str(error), severity="error")
                self.chat.forget(session)
                self.switched()

        self.app.push_screen(Confirm(f"Delete “{session.title}” for good?", "delete"), delete)

    def action_rename(self) -> None:
        session = self.sessions.current
        if self._is_held_elsewhere(session):
            return

        def rename(title: str | None) -> None:
            if title:
                try:
                    self.sessions.rename(session, title)
                except StoreError as error:
                    self.notify(str(error), severity="error")
                self.chat.update_bar()

        self.app.push_screen(AskText("Title of this chat", session.title), rename)

    @on(ChatTabs.MoreWanted)
    def action_find(self) -> None:
        try:
            kept = self.sessions.kept()
        except StoreError as error:
            self.notify(str(error), severity="error")
            return
        states = {session.key: "open" for session in self.sessions.sessions}
        states |= {session.key: "runs" for session in self.sessions.closed}

        def open_it(key: str | None) -> None:
            if key is not None:
                self.open(key)

        self.app.push_screen(FindChat(kept, states), open_it)

    def action_export(self) -> None:
        """Write the chat on view to a Markdown file in the working directory."""
        session = self.sessions.current
        path = Path.cwd() / file_name(session.title)
        user = "You" if session.is_own else session.chat.conversation.user
        try:
            text = as_markdown(session.title, session.chat.messages, user)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            self.notify(f"{path}: {error.strerror}", severity="error")
        else:
            self.notify(f"Written to {path}")

    def _is_held_elsewhere(self, session: OpenSession) -> bool:
        """Whether somebody else may go on with a chat. If so, the user is told."""
        if isinstance(session.chat, WatchedChat) and session.chat.is_live:
            self.notify(session.refusal, severity="warning")
            return True
        return False
