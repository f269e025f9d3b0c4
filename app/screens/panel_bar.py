"""PanelBar: the names of the engine's panels, if only one fits on the screen at a time."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.message import Message

from widgets.glyphs import Glyphs
from widgets.line import Line
from widgets.line_view import LineView


class PanelBar(LineView):
    """A line of names and their digits. A click on a name goes to its panel, as its digit does."""

    DEFAULT_CSS = "PanelBar { height: 1; }"

    class Picked(Message):
        """The name of the panel at `place`, counted from 0, was clicked."""

        def __init__(self, place: int) -> None:
            super().__init__()
            self.place = place

    def __init__(self, names: Sequence[str], glyphs: Glyphs, *, id: str) -> None:
        super().__init__(glyphs, id=id)
        self._names = names
        self._current = 0

    def show(self, current: int) -> None:
        self._current = current
        self.redraw()

    def draw(self, width: int, height: int) -> list[Line]:
        line = self.line(width)
        for place, (start, _, text) in enumerate(self._spans()):
            line.pad(self.palette.text, until=width - start)
            chosen = self.palette.strong + self.palette.cursor
            line.add(text, chosen if place == self._current else self.palette.muted)
        return [line]

    def on_click(self, event: events.Click) -> None:
        for place, (start, end, _) in enumerate(self._spans()):
            if start <= event.x < end:
                self.post_message(self.Picked(place))

    def _spans(self) -> list[tuple[int, int, str]]:
        """The place of each name: its first cell, the cell after its last, and its text."""
        names, room = self._names, self.size.width - 1 - 4 * len(self._names)
        longest = max(map(len, names))
        while sum(len(name[:longest]) for name in names) > room and longest > 1:
            longest -= 1
        spans, x = [], 1
        for place, name in enumerate(names, 1):
            text = f" {place} {name[:longest]} "
            spans.append((x, x + len(text), text))
            x += len(text)
        return spans
