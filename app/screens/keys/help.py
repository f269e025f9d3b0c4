"""HelpScreen: the keys, what they do, and the meanings of words, those of the focused place
first."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from app.screens.dialogs.dialog import Dialog

_KEY, _MEANING = 24, 28  # cells of a column
_LEAST = 20  # for what a key does, else its name stands below
_NARROW = 60  # below so many cells, a key has a shorter column


@dataclass(frozen=True, slots=True)
class HelpSection:
    """The help on one place.

    Attributes:
        keys: each as (key, what it does, name).
        words: what the words mean that stand there.
    """

    heading: str
    keys: list[tuple[str, str, str]]
    words: Mapping[str, str]


class HelpScreen(Dialog[None]):
    """The help, by place.

    Args:
        notes: what there is to know everywhere.

    Attributes:
        sections: in the order in which they are shown.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "dismiss", "Close", tooltip="Close the help", id="help.close")
    ]

    def __init__(self, sections: Iterable[HelpSection], notes: str) -> None:
        super().__init__()
        self.sections = list(sections)
        self._notes = notes

    def compose(self) -> ComposeResult:
        with VerticalScroll() as scroll:
            scroll.border_title = "Help"
            scroll.border_subtitle = f"{self.key_of('dismiss(None)')} closes"
            yield Static("")

    def on_mount(self) -> None:
        self._lay_out()

    def on_resize(self, event: events.Resize) -> None:
        self.call_after_refresh(self._lay_out)

    def _lay_out(self) -> None:
        width = self.query_one(VerticalScroll).content_size.width
        self.query_one(Static).update(self._text(max(width, _KEY * 2)))

    def _text(self, width: int) -> Content:
        parts: list[Content | tuple[str, str] | str] = []
        longest = max((len(name) for one in self.sections for _, _, name in one.keys), default=0)
        for section in self.sections:
            parts.append((f"{section.heading}\n", "bold $text-primary"))
            for row in section.keys:
                parts += _row(*row, width, longest)
            if section.keys and section.words:
                parts.append("\n")
            for word, meaning in section.words.items():
                hanging = textwrap.wrap(f"{word}  {meaning}", width - 4, subsequent_indent="    ")
                first, *rest = hanging
                parts += ["  ", (word, "$text-accent"), first.removeprefix(word)]
                parts += [f"\n{line}" for line in rest] + ["\n"]
            parts.append("\n")
        return Content.assemble(*parts, (self._notes, "$text-muted"))


def _row(
    key: str, meaning: str, name: str, width: int, longest: int
) -> list[tuple[str, str] | str]:
    """The meaning of a key, in a column; its name in the next one, or below where that has no room.

    Args:
        longest: cells of the longest name.
    """
    column = _KEY if width >= _NARROW else _KEY - 8
    blanks = " " * max(0, column - 2 - cell_len(key))
    beside = min(_MEANING, width - column - longest)
    if beside >= _LEAST:
        first, *more = textwrap.wrap(meaning, beside - 1)
        below = "".join(f"{' ' * column}{line}\n" for line in more)
        named = (f"{name}\n", "$text-muted")
        return [(f"  {key}{blanks}", "bold"), f"{first:<{beside}}", named, below]
    text = f"\n{' ' * column}".join(textwrap.wrap(meaning, width - column))
    return [(f"  {key}{blanks}", "bold"), text, (f"\n{' ' * column}{name}\n", "$text-muted")]
