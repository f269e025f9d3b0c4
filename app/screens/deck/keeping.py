"""Keeping: names, archives and deletes chats for the user, and takes that back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from textual.binding import Binding, BindingType

from app.screens.chats.keeper import Done, HeldError
from app.screens.deck.listing import Listing
from app.screens.dialogs.ask_text import AskText
from app.store.database import StoreError


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
        done = None
        with self._telling():
            done = self.keeper.close(session.key)
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

        def rename(title: str | None) -> None:
            if title:
                self.rename(key, title)

        with self._telling():
            self.keeper.check(key)
            session, chat = self.sessions.find(key), self.store.conversation(key)
            title = session.title if session is not None else chat.title if chat is not None else ""
            self.app.push_screen(AskText("Title of this chat", title), rename)

    def rename(self, key: str, title: str) -> bool:
        """Give a chat another title; False if that cannot be, and the user has been told."""
        with self._telling():
            self.keeper.rename(key, title)
            self.chat.update()
            return True
        return False

    def _part(self, deed: Callable[[str], Done | None]) -> None:
        """Do something to a chat that takes it out of view."""
        key, before = self.key_in_hand(), self.sessions.current
        with self._telling():
            if (done := deed(key)) is not None:
                self.tell_done(done)
        if self.sessions.current is not before:
            self.switched()
        self.chat.update_bar()

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """What cannot be done to a chat within is told, and not raised."""
        try:
            yield
        except HeldError as error:
            self.refuse(str(error))
        except StoreError as error:
            self.notify(str(error), severity="error")
