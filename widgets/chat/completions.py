"""Completions: what may be meant by a line that begins with a slash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual import events
from textual.message import Message

from widgets.glyphs import UNICODE, Glyphs
from widgets.line import Line
from widgets.line_view import LineView

MOST = 6


@dataclass(frozen=True, slots=True)
class Completion:
    """One of them.

    Attributes:
        takes: what follows the name; empty if nothing does.
    """

    name: str
    does: str
    takes: str = ""


class Completions(LineView):
    """A list above the prompt, which keeps the focus.

    Attributes:
        is_open: whether there is anything to choose.
    """

    DEFAULT_CSS = """
    Completions { height: auto; display: none; padding: 0 0 0 1; }
    """

    class Taken(Message):
        """One was chosen.

        Attributes:
            runs: whether it is to be run, if nothing has to follow it.
        """

        def __init__(self, completion: Completion, *, runs: bool) -> None:
            super().__init__()
            self.completion = completion
            self.runs = runs

    def __init__(self, glyphs: Glyphs = UNICODE) -> None:
        super().__init__(glyphs)
        self._items: tuple[Completion, ...] = ()
        self._place = 0

    @property
    def is_open(self) -> bool:
        return bool(self._items)

    def show(self, items: Sequence[Completion]) -> None:
        """Show these instead; none closes the list."""
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

    def take(self, *, runs: bool) -> None:
        """Choose the one under the cursor."""
        self.post_message(self.Taken(self._items[self._place], runs=runs))

    def draw(self, width: int, height: int) -> list[Line]:
        palette = self.palette
        first = max(0, min(self._place - height // 2, len(self._items) - height))
        room = max((len(_head(item)) for item in self._items), default=0)
        lines = []
        for place, item in enumerate(self._items[first : first + height], first):
            style = palette.text + palette.cursor if place == self._place else palette.text
            mark = ("▸" if self.glyphs.unicode else ">") if place == self._place else " "
            line = self.line(width).add(f"{mark} ", style)
            line.cell(_head(item), min(room, width // 2), style)
            lines.append(line.add(f"  {item.does}", palette.muted))
        return lines

    def on_click(self, event: events.Click) -> None:
        first = max(0, min(self._place - self.size.height // 2, len(self._items) - MOST))
        self._place = min(first + event.y, len(self._items) - 1)
        self.take(runs=False)


def _head(item: Completion) -> str:
    return f"/{item.name} {item.takes}".rstrip()
