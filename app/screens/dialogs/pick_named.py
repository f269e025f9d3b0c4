"""PickNamed: a dialog for things that have names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Label, OptionList
from textual.widgets.option_list import Option

from app.screens.bound import bindings_of
from app.screens.dialogs.dialog import Dialog
from widgets.glyphs import UNICODE
from widgets.line import shorten


@dataclass(frozen=True, slots=True)
class Named:
    """One of them.

    Attributes:
        title: as it is shown.
        text: what it is, in a line.
    """

    name: str
    title: str
    text: str


class PickNamed(Dialog[tuple[str, str]]):
    """Asks for one of some things, and what to do with it: the result is a verb and the name, with
    `take` as the verb of Enter. Other verbs are keys of a kind of this dialog, with the action
    `act`; `TITLE` says what Enter does.

    Args:
        first: the name that the cursor is on at first, if there is such a one.

    Attributes:
        MOST: the most characters of a text that are shown.
    """

    MOST: ClassVar[int] = 70

    def __init__(self, items: Sequence[Named], first: str = "") -> None:
        super().__init__()
        self._items = items
        self._first = first

    def compose(self) -> ComposeResult:
        with Vertical() as frame:
            keys = (binding for binding in bindings_of(self, self.app) if binding.show)
            frame.border_subtitle = " · ".join(
                f"{self.app.get_key_display(key)} {key.description}" for key in keys
            )
            yield Label(self.TITLE or "", markup=False)
            yield OptionList(*(Option(self._line(item), item.name) for item in self._items))

    def on_mount(self) -> None:
        options = self.query_one(OptionList)
        names = [item.name for item in self._items]
        if names:
            options.highlighted = names.index(self._first) if self._first in names else 0
        options.focus()

    @on(OptionList.OptionSelected)
    def choose(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(("take", str(event.option_id)))

    def action_act(self, verb: str) -> None:
        place = self.query_one(OptionList).highlighted
        if place is not None:
            self.dismiss((verb, self._items[place].name))

    def _line(self, item: Named) -> Content:
        text = shorten(UNICODE.fit(" ".join(item.text.split())), self.MOST)
        return Content.assemble((UNICODE.fit(item.title), "bold"), (f"\n  {text}", "$text-muted"))
