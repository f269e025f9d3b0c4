"""FindChat: a dialog that finds a chat."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Label, OptionList
from textual.widgets.option_list import Option

from app.screens.chats.open_session import title_of
from app.store.conversation import Conversation

_SHOWN = 200


class FindChat(ModalScreen[str | None]):
    """Asks for one of the chats. It is found by any words of its title and of the name of
    whoever holds it.

    Args:
        conversations: those to choose from, in the order in which they are listed.
        states: a word for those that are open or have a reply in the making, by their ids.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Cancel", id="dialog.cancel"),
        Binding("up", "move(-1)", "Up", show=False, id="dialog.up", priority=True),
        Binding("down", "move(1)", "Down", show=False, id="dialog.down", priority=True),
    ]

    def __init__(self, conversations: Sequence[Conversation], states: Mapping[str, str]) -> None:
        super().__init__()
        self._conversations = conversations
        self._states = states

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label("Chats · Enter opens")
            yield Input(placeholder="words of the title")
            yield OptionList()

    def on_mount(self) -> None:
        self._list("")

    def on_input_changed(self, event: Input.Changed) -> None:
        self._list(event.value)

    def on_input_submitted(self) -> None:
        options = self.query_one(OptionList)
        if options.highlighted is not None:
            self.dismiss(options.get_option_at_index(options.highlighted).id)

    @on(OptionList.OptionSelected)
    def choose(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)

    def action_move(self, places: int) -> None:
        options = self.query_one(OptionList)
        if options.option_count:
            place = (options.highlighted or 0) + places
            options.highlighted = max(0, min(place, options.option_count - 1))

    def _list(self, wanted: str) -> None:
        words = wanted.casefold().split()
        found = [
            c for c in self._conversations if all(word in title_of(c).casefold() for word in words)
        ]
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options(Option(self._line(c), id=c.id) for c in found[:_SHOWN])
        options.highlighted = 0 if found else None

    def _line(self, conversation: Conversation) -> Content:
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(conversation.updated))
        state = f"{self._states.get(conversation.id, ''):4}"
        return Content.assemble((f"{day}  {state}  ", "$text-muted"), title_of(conversation))
