"""Chips: the attachments of the message being written, one line for each."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from textual import events
from textual.message import Message

from widgets.glyphs import UNICODE, Glyphs
from widgets.line import Line, shorten
from widgets.line_view import LineView

MOST = 4  # lines; the rest is shown as a number


class Chips(LineView):
    """A click on a line removes its attachment."""

    DEFAULT_CSS = """
    Chips { height: auto; display: none; padding: 0 0 0 3; }
    """

    class Dropped(Message):
        """Remove an attachment.

        Attributes:
            place: its index among the attachments.
        """

        def __init__(self, place: int) -> None:
            super().__init__()
            self.place = place

    def __init__(self, glyphs: Glyphs = UNICODE) -> None:
        super().__init__(glyphs)
        self._labels: tuple[str, ...] = ()

    def show(self, labels: Sequence[str]) -> None:
        labels = tuple(labels)
        if labels == self._labels:
            return
        grown = len(labels) != len(self._labels)
        self._labels = labels
        if grown:
            self.styles.height = min(len(labels), MOST)
            self.display = bool(labels)
        self.redraw()

    def draw(self, width: int, height: int) -> list[Line]:
        labels, palette = self._labels, self.palette
        shown = labels if len(labels) <= MOST else labels[: MOST - 1]
        cross = "✕" if self.glyphs.unicode else "x"
        lines = [
            self.line(width)
            .add(f"{_fitted(label, width - 2)} ", palette.text)
            .add(cross, palette.muted)
            for label in shown
        ]
        if len(shown) < len(labels):
            rest = f"+{len(labels) - len(shown)} more"
            lines.append(self.line(width).add(rest, palette.muted))
        return lines

    def on_click(self, event: events.Click) -> None:
        if event.y < min(len(self._labels), MOST if len(self._labels) <= MOST else MOST - 1):
            self.post_message(self.Dropped(event.y))


def _fitted(label: str, width: int) -> str:
    """A name with its facts; the name is shortened if needed."""
    name, *facts = label.rsplit(" · ", 2)
    suffix = "".join(f" · {fact}" for fact in facts)
    return shorten(shorten(name, max(width - cell_len(suffix), 1)) + suffix, width)
