"""Keeping: names, archives and deletes chats for the user, and takes that back."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeVar

from textual.binding import Binding, BindingType

from app.screens.chats.keeper import Done
from app.screens.deck.listing import Listing
from app.screens.dialogs.ask_text import AskText
from app.store.database import StoreError

T = TypeVar("T")


class Keeping(Listing):
    """The part of the deck that deals with what becomes of a chat."""

    # They act before the prompt takes them, which would select text.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "f6",
            "rename",
            "Rename chat",
            tooltip="Give the chat another title",
            show=False,
            id="chat.rename",
            priority=True,
        ),
        Binding(
            "f7",
            "archive",
            "Archive chat",
            tooltip="Archive the chat, or take it back",
            show=False,
            id="chat.archive",
            priority=True,
        ),
        Binding(
            "f8",
            "delete",
            "Delete chat",
            tooltip="Delete the chat; it can be undone",
            show=False,
            id="chat.delete",
            priority=True,
        ),
        Binding(
            "f12",
            "undo_chat",
            "Undo",
            tooltip="Take back that a chat was closed, archived or deleted",
            show=False,
            id="chat.undo",
            priority=True,
        ),
    ]

    def action_close(self) -> None:
        session = self.sessions.current
        goes_on = " its reply goes on," if session.chat.is_busy else ""
        done = self._attempt(lambda: self.keeper.close(session.key))
        if not session.is_own:
            self.notify(f"“{session.title}” {'goes on; it ' if goes_on else ''}is watched no more.")
        elif done is not None:
            undo, find = self.key_of("undo_chat"), self.key_of("find")
            self.notify(f"Closed “{done.title}”;{goes_on} {undo} undoes, {find} finds it again.")
        self.switched()

    def action_archive(self) -> None:
        """Put the chat on view away, or take it back."""
        self._part(lambda key: self.keeper.archive(key))

    def action_delete(self) -> None:
        """Delete the chat on view."""
        self._part(lambda key: self.keeper.delete(key))

    def action_undo_chat(self) -> None:
        """Take back the last closing, archiving or deleting of a chat."""
        self.tell_undone()
        self.switched()

    def action_rename(self) -> None:
        """Ask for another title of the chat in hand."""
        key = self.key_in_hand()
        session, chat = self.sessions.find(key), self._attempt(lambda: self.store.conversation(key))
        if self._is_refused(key):
            return
        before = session.title if session is not None else chat.title if chat is not None else ""

        def rename(title: str | None) -> None:
            if title:
                self.rename(key, title)

        self.app.push_screen(AskText("Title of this chat", before), rename)

    def rename(self, key: str, title: str) -> bool:
        """Give a chat another title; False if that is refused, and the user has been told."""
        if self._is_refused(key):
            return False
        self._attempt(lambda: self.keeper.rename(key, title))
        self.chat.update()
        return True

    def _part(self, deed: Callable[[str], Done | None]) -> None:
        """Do something to a chat that takes it out of view."""
        key, before = self.key_in_hand(), self.sessions.current
        if self._is_refused(key):
            return
        done = self._attempt(lambda: deed(key))
        if done is not None:
            self.tell_done(done)
        if self.sessions.current is not before:
            self.switched()
        self.chat.update_bar()

    def _attempt(self, deed: Callable[[], T]) -> T | None:
        try:
            return deed()
        except StoreError as error:
            self.notify(str(error), severity="error")
            return None

    def _is_refused(self, key: str) -> bool:
        """Whether somebody else may go on with a chat. If so, the user is told."""
        refusal = self._attempt(lambda: self.keeper.refusal(key))
        if refusal:
            self.refuse(refusal)
        return refusal != ""
