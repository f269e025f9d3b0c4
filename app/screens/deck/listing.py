"""Listing: all chats at the side, where there is room for them."""

from __future__ import annotations

from typing import ClassVar

from textual import events, on
from textual.binding import Binding, BindingType

from app.screens.deck.conversing import Conversing
from widgets.chat.chat_list import ChatList

WIDE = 170  # columns from which on they are shown unless the user says otherwise
LEAST = 150  # columns below which there is no room


class Listing(Conversing):
    """The part of the deck that shows or hides the sidebar. Its class `-chats` is there while the
    sidebar is; then there are no tabs."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "ctrl+t",
            "chats",
            "Chats",
            tooltip="All chats at the side: go there, or show and hide them",
            show=False,
            id="view.chats",
            priority=True,
        ),
    ]

    _wanted: bool | None = None  # None is by the width

    @on(events.Resize)
    def arrange_chats(self, event: events.Resize) -> None:
        self._arrange_chats(event.size.width)

    def action_chats(self) -> None:
        """Show the chats and go to them; where one is there already, hide them."""
        if self.app.size.width < LEAST:
            find = self.key_of("find")
            self.notify(f"Chats stand at the side from {LEAST} columns on; {find} finds them.")
            return
        self._wanted = not self.has_class("-chats") or not self.chat.list.has_focus
        self._arrange_chats(self.app.size.width)
        self.chat.update_bar()
        if self._wanted:
            self.chat.list.focus()
        else:
            self.chat.prompt.area.focus()

    def key_in_hand(self) -> str:
        """The id of the chat that keys act on: the one under the cursor where that is seen, else
        the one on view."""
        if self.chat.list.has_focus:
            return self.chat.list.cursor
        return self.sessions.current.key

    @on(ChatList.Picked)
    def pick_listed(self, event: ChatList.Picked) -> None:
        self.open(event.key)

    def _arrange_chats(self, width: int) -> None:
        shown = width >= (WIDE if self._wanted is None else LEAST) and self._wanted is not False
        self.set_class(shown, "-chats")
