"""HelpScreen: the keys and what they do, what the words mean, first of where one is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from textwrap import wrap
from typing import ClassVar

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
            yield Static(self._text())

    def _text(self) -> Content:
        parts: list[Content | tuple[str, str] | str] = []
        for section in self._sections:
            parts.append((f"{section.heading}\n", "bold $text-primary"))
            for key, meaning, name in section.keys:
                first, *more = wrap(meaning, 27)
                parts += [(f"  {key:<22}", "bold"), f"{first:<28}", (f"{name}\n", "$text-muted")]
                parts += [f"{'':<24}{line}\n" for line in more]
            for word, meaning in section.words.items():
                parts += [(f"  {word}  ", "$text-accent"), f"{meaning}\n"]
            parts.append("\n")
        return Content.assemble(*parts, (NOTES, "$text-muted"))
