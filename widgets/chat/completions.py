"""Completions: the commands that a line with a slash may mean, and the paths after an `@`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual import events
from textual.message import Message

from widgets.glyphs import UNICODE, Glyphs
from widgets.line import Line, shorten
from widgets.line_view import LineView

MOST = 6


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion.

    Attributes:
        label: its text in the list.
        text: the text that accepting it writes.
        is_whole: whether the command is complete without arguments.
        start: the column of the cursor's line from which the text replaces all before the cursor;
            None replaces the whole text.
        attaches: the path of the file that accepting it attaches; empty for none.
    """

    label: str
    does: str
    text: str
    is_whole: bool
    start: int | None = None
    attaches: str = ""


class Completions(LineView):
    """A list above the prompt, which keeps the focus."""

    DEFAULT_CSS = """
    Completions { height: auto; display: none; padding: 0 0 0 1; }
    """

    class Clicked(Message):
        """The completion under the cursor was clicked."""

    def __init__(self, glyphs: Glyphs = UNICODE) -> None:
        super().__init__(glyphs)
        self._items: tuple[Completion, ...] = ()
        self._place = 0

    @property
    def current(self) -> Completion | None:
        """The completion under the cursor; None if there is none."""
        return self._items[self._place] if self._items else None

    def show(self, items: Sequence[Completion]) -> None:
        """Show these completions; none closes the list."""
        items = tuple(items)
        if items == self._items:
            return
        self._items, self._place = items, 0
        self.styles.height = min(len(items), MOST)
        self.display = bool(items)
        self.redraw()

    def move(self, places: int) -> None:
        self._place = (self._place + places) % len(self._items)
        self.redraw()

    def draw(self, width: int, height: int) -> list[Line]:
        palette = self.palette
        first = self._first(height)
        room = max((len(item.label) for item in self._items), default=0)
        lines = []
        for place, item in enumerate(self._items[first : first + height], first):
            style = palette.text + palette.cursor if place == self._place else palette.text
            mark = self.glyphs.cursor if place == self._place else " "
            line = self.line(width).add(f"{mark} ", style)
            line.cell(item.label, min(room, width // 2), style)
            lines.append(line.add(f"  {shorten(item.does, line.room - 2)}", palette.muted))
        return lines

    def on_click(self, event: events.Click) -> None:
        self._place = min(self._first(self.size.height) + event.y, len(self._items) - 1)
        self.post_message(self.Clicked())

    def _first(self, height: int) -> int:
        """The index of the completion on the first of so many lines."""
        return max(0, min(self._place - height // 2, len(self._items) - height))
