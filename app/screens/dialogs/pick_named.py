"""PickNamed: a dialog for things that the user keeps under names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Label, OptionList
from textual.widgets.option_list import Option

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
    `take` as the verb of Enter.

    Args:
        verbs: by the letter that stands for each.
    """

    def __init__(self, title: str, items: Sequence[Named], verbs: Mapping[str, str]) -> None:
        super().__init__()
        self._title = title
        self._items = items
        self._verbs = verbs

    def compose(self) -> ComposeResult:
        with Vertical() as frame:
            keys = " · ".join(f"{key} {verb}s" for key, verb in self._verbs.items())
            frame.border_subtitle = f"{keys} · Esc leaves"
            yield Label(self._title, markup=False)
            yield OptionList(*(Option(self._line(item), item.name) for item in self._items))

    def on_mount(self) -> None:
        options = self.query_one(OptionList)
        options.highlighted = 0 if self._items else None
        options.focus()

    @on(OptionList.OptionSelected)
    def choose(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(("take", str(event.option_id)))

    def on_key(self, event: events.Key) -> None:
        place = self.query_one(OptionList).highlighted
        if event.key in self._verbs and place is not None:
            event.stop()
            self.dismiss((self._verbs[event.key], self._items[place].name))

    def _line(self, item: Named) -> Content:
        text = shorten(UNICODE.fit(" ".join(item.text.split())), 70)
        return Content.assemble((UNICODE.fit(item.title), "bold"), (f"\n  {text}", "$text-muted"))
