"""HelpScreen: the keys and what they do, what the words mean, first of where one is."""

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
from textual.screen import ModalScreen
from textual.widgets import Static

NOTES = """\
F1 tells first of where one is: of the panel or the dialog that has the focus.
Letters and digits act while the prompt does not have the focus: Tab leaves it, Esc comes back.
Shift with the mouse selects in the terminal's own way; a selection is copied with Ctrl+C.
Any key can be changed in the settings (F9), by the name at the end of its line."""

_KEY, _MEANING = 24, 28  # cells of a column
_NARROW = 60  # below so many cells, a key has a shorter column


@dataclass(frozen=True, slots=True)
class HelpSection:
    """What there is to know of one place.

    Attributes:
        keys: each as (key, what it does, name).
        words: what the words mean that stand there.
    """

    heading: str
    keys: list[tuple[str, str, str]]
    words: Mapping[str, str]


class HelpScreen(ModalScreen[None]):
    """What there is to know, by place.

    Args:
        sections: in the order in which they are shown.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss", "Close", id="help.close")
    ]

    def __init__(self, sections: Iterable[HelpSection]) -> None:
        super().__init__()
        self._sections = sections

    def compose(self) -> ComposeResult:
        with VerticalScroll() as scroll:
            scroll.border_title = "Help"
            scroll.border_subtitle = "Esc closes"
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
        for section in self._sections:
            parts.append((f"{section.heading}\n", "bold $text-primary"))
            for row in section.keys:
                parts += _row(*row, width)
            for word, meaning in section.words.items():
                hanging = textwrap.wrap(f"{word}  {meaning}", width - 4, subsequent_indent="    ")
                first, *rest = hanging
                parts += ["  ", (word, "$text-accent"), first.removeprefix(word)]
                parts += [f"\n{line}" for line in rest] + ["\n"]
            parts.append("\n")
        return Content.assemble(*parts, (NOTES, "$text-muted"))


def _row(key: str, meaning: str, name: str, width: int) -> list[tuple[str, str] | str]:
    """What a key does, beside it; its name at the end of that, or below where it has no room."""
    column = _KEY if width >= _NARROW else _KEY - 8
    room = width - column
    lines = textwrap.wrap(meaning, room) or [""]
    blanks = max(0, column - 2 - cell_len(key))
    parts: list[tuple[str, str] | str] = [(f"  {key}{' ' * blanks}", "bold")]
    for line in lines[:-1]:
        parts.append(f"{line}\n{' ' * column}")
    start = min(_MEANING, room - len(name))
    if len(lines[-1]) < start:
        parts.append(f"{lines[-1]:<{start}}")
    else:
        parts.append(f"{lines[-1]}\n{' ' * (column + max(0, start))}")
    return [*parts, (f"{name}\n", "$text-muted")]
