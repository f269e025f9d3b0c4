"""Conversing: opens, finds and switches chats for the user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType

from app.screens.bound import key_of
from app.screens.chats.chat import ChatPane
from app.screens.chats.keeper import ChatKeeper, Done
from app.screens.chats.sessions import SessionList
from app.screens.deck.steering import Steering
from app.screens.dialogs.find_chat import Chosen, FindChat
from app.store.database import StoreError
from engine.api.errors import InvalidRequestError
from widgets.chat.chat_tabs import ChatTabs
from widgets.glyphs import Glyphs


class Conversing(Steering):
    """The part of the deck that goes from chat to chat."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "ctrl+w",
            "close",
            "Close chat",
            tooltip="Close the chat; it is kept",
            show=False,
            id="chat.close",
        ),
        Binding("ctrl+pageup", "step(-1)", "Previous chat", show=False, id="chat.previous"),
        Binding("ctrl+pagedown,f4", "step(1)", "Next chat", show=False, id="chat.next"),
        *(
            Binding(
                f"alt+{n}",
                f"pick({n})",
                "Chat by its number",
                tooltip=f"Chat number {n}",
                show=False,
                id=f"chat.{n}",
            )
            for n in range(1, 10)
        ),
    ]

    def __init__(self, sessions: SessionList, glyphs: Glyphs) -> None:
        super().__init__(sessions, glyphs)
        self.store = sessions.store
        self.keeper = ChatKeeper(sessions, self.store)
        self.chat = ChatPane(sessions, self.engine, glyphs, id="chat")

    def key_of(self, action: str) -> str:
        """The key that the screen has for an action, as it is shown."""
        return key_of(action, self, self.app)

    def switched(self) -> None:
        """Show the chat that is on view now."""
        self.panels.kv.select(self.sessions.number_of(self.sessions.current))
        self.chat.update()
        self.refresh_bindings()

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

    def open(self, conversation_id: str) -> bool:
        """Go to a chat, opening it if need be; returns whether it is on view."""
        try:
            found = self.sessions.open(conversation_id)
        except StoreError as error:
            self.notify(str(error), severity="error")
            return False
        if found:
            self.switched()
        else:
            self.refuse("This chat is not in the store.")
        return found

    @on(ChatTabs.MoreWanted)
    def action_find(self) -> None:
        """Find a chat by the words in it, and go to it."""
        self.find("")

    def find(self, words: str) -> None:
        """As `action_find`, with these words to begin with."""
        before = self.sessions.current

        def open_it(chosen: Chosen | None) -> None:
            if self.sessions.current is not before:
                self.switched()  # for the one on view was deleted, or brought back
            if chosen is not None and self.open(chosen.key) and chosen.message_id is not None:
                self._mark(chosen.message_id, chosen.words)

        states = {session.key: "open" for session in self.sessions.sessions}
        states |= {session.key: "runs" for session in self.sessions.closed}
        self.app.push_screen(FindChat(self.store.search, states, self, words), open_it)

    def _mark(self, message_id: str, words: Sequence[str]) -> None:
        """Mark words in a message of the chat on view, whichever branch it is on."""
        chat = self.sessions.current.chat
        try:
            if message_id not in {message.id for message in chat.messages}:
                chat.bring(message_id)
                self.chat.update()
        except InvalidRequestError as error:
            self.refuse(f"The message is on another branch: {error.message}.")
            return
        self.chat.transcript.go_to(message_id, words)

    def tell_done(self, done: Done) -> None:
        """Say what was done to a chat, and how it is taken back."""
        also = "; its reply was stopped" if done.stopped else ""
        self.notify(
            f"“{done.title}” is {done.deed.value}{also}. {self.key_of('undo_chat')} undoes."
        )

    def tell_undone(self) -> None:
        """Take back the last closing, archiving or deleting, and say so."""
        try:
            done = self.keeper.undo()
        except StoreError as error:
            self.notify(str(error), severity="error")
        except LookupError as error:
            self.refuse(f"“{error.args[0]}” is gone for good.")
        else:
            if done is None:
                self.notify("No chat that was closed, archived or deleted is left to bring back.")
            else:
                self.notify(f"“{done.title}” is as it was before it was {done.deed.value}.")
