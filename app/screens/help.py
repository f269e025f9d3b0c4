"""HelpScreen: every key and what it does here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

NOTES = """\
Letters and digits act while the prompt does not have the focus: Tab leaves it, Esc comes back.
Shift with the mouse selects in the terminal's own way; a selection is copied with Ctrl+C.
Any key can be changed, by the name at the end of its line, under [keys] in the configuration."""


class HelpScreen(ModalScreen[None]):
    """A list of keys, by where they act.

    Args:
        groups: headings, each with its keys as (key, what it does, name).
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1,q", "dismiss", "Close", id="help.close")
    ]

    def __init__(self, groups: Iterable[tuple[str, list[tuple[str, str, str]]]]) -> None:
        super().__init__()
        self._groups = groups

    def compose(self) -> ComposeResult:
        with VerticalScroll() as scroll:
            scroll.border_title = "Help"
            scroll.border_subtitle = "Esc closes"
            yield Static(self._text())

    def _text(self) -> Content:
        parts: list[Content | tuple[str, str] | str] = []
        for heading, keys in self._groups:
            parts.append((f"{heading}\n", "bold $text-primary"))
            for key, meaning, name in keys:
                parts += [(f"  {key:<22}", "bold"), f"{meaning:<28}", (f"{name}\n", "dim")]
            parts.append("\n")
        return Content.assemble(*parts, (NOTES, "dim"))
