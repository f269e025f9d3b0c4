"""Dialogs: small screens that ask for one thing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Label, OptionList
from textual.widgets.option_list import Option

from app.screens.sessions import title_of
from app.store.conversation import Conversation

_SHOWN = 200


class AskText(ModalScreen[str | None]):
    """Asks for a line of text. The result is None if it was cancelled or left empty."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Cancel", id="dialog.cancel")
    ]

    def __init__(self, question: str, text: str) -> None:
        super().__init__()
        self._question = question
        self._text = text

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label(self._question, markup=False)
            yield Input(self._text, select_on_focus=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip() or None)


class Confirm(ModalScreen[bool]):
    """Asks whether something that cannot be taken back is meant.

    Args:
        question: what is asked.
        deed: a verb for what Enter does.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "dismiss(True)", "Yes", id="dialog.confirm"),
        Binding("escape", "dismiss(False)", "Cancel", id="dialog.cancel"),
    ]

    def __init__(self, question: str, deed: str) -> None:
        super().__init__()
        self._question = question
        self._deed = deed

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label(self._question, markup=False)
            yield Label(f"Enter to {self._deed}, Esc to leave it.")


class PickPolicy(ModalScreen[str | None]):
    """Asks for a batching policy.

    Args:
        choices: the name of each policy and what it does.
        current: the policy that is asked for now.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,p", "dismiss(None)", "Cancel", id="dialog.cancel")
    ]

    def __init__(self, choices: Sequence[tuple[str, str]], current: str) -> None:
        super().__init__()
        self._choices = choices
        self._current = current

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label("Policy · Enter chooses; what runs goes on under the new one")
            yield OptionList(*(Option(self._line(*choice), choice[0]) for choice in self._choices))

    def on_mount(self) -> None:
        names = [name for name, _ in self._choices]
        options = self.query_one(OptionList)
        options.highlighted = names.index(self._current) if self._current in names else 0
        options.focus()

    @on(OptionList.OptionSelected)
    def choose(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)

    def _line(self, name: str, does: str) -> Content:
        now = " · now" if name == self._current else ""
        return Content.assemble((name, "bold"), (f"{now}\n  {does}", "$text-muted"))


class PickConversation(ModalScreen[str | None]):
    """Asks for one of the conversations. It is found by any words of its title and of the name of
    whoever holds it.

    Args:
        conversations: those to choose from, in the order in which they are listed.
        open_keys: the ids of those that are open.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Cancel", id="dialog.cancel"),
        Binding("up", "move(-1)", "Up", show=False, id="dialog.up", priority=True),
        Binding("down", "move(1)", "Down", show=False, id="dialog.down", priority=True),
    ]

    def __init__(self, conversations: Sequence[Conversation], open_keys: frozenset[str]) -> None:
        super().__init__()
        self._conversations = conversations
        self._open_keys = open_keys

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label("Conversations · Enter opens")
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
        state = "open" if conversation.id in self._open_keys else "    "
        return Content.assemble((f"{day}  {state}  ", "$text-muted"), title_of(conversation))
