"""LogPanel: the log of events, line by line."""

from __future__ import annotations

import textwrap
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import ClassVar, NamedTuple

from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from widgets.figures import counted, time_of_day
from widgets.glyphs import UNICODE, Glyphs
from widgets.line import Line, shorten
from widgets.panels.log_line import Level, LogLine
from widgets.panels.scroll_panel import ScrollPanel, list_keys

CAPACITY = 1000

# The cells of time, level and source, and the minimum for the text beside them.
_LEADS = (((9, 2, 7), 40), ((9, 2, 0), 24), ((0, 2, 0), 20), ((0, 0, 0), 0))


class _Row(NamedTuple):
    """A row of the panel with an event or a piece of one."""

    event: int
    piece: int
    line: LogLine
    text: str


class LogPanel(ScrollPanel, can_focus=True):
    """The last `CAPACITY` events. It follows the newest one unless the user has scrolled up."""

    KEYS: ClassVar[Mapping[str, str]] = {"level": "l", "edge(1)": "end"}

    BINDINGS: ClassVar[list[BindingType]] = [
        *list_keys("log", last="Follow"),
        Binding("l", "level", "Level", id="log.level"),
        Binding("enter", "choose", "Open", id="log.open"),
    ]

    class Chosen(Message):
        """An event was chosen with Enter."""

        def __init__(self, line: LogLine) -> None:
            super().__init__()
            self.line = line

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self.level = Level.INFO
        self.following = True
        self._events: deque[tuple[int, LogLine]] = deque(maxlen=CAPACITY)
        self._total = 0
        self._rows: list[_Row] = []
        self._cursor: int | None = None  # the number of an event; None while it follows

    def add(self, lines: Iterable[LogLine]) -> None:
        """Append events, oldest first."""
        for line in lines:
            self._events.append((self._total, line))
            self._total += 1
        self.redraw()

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    @property
    def num_below(self) -> int:
        return 0  # the footer says how many newer lines there are

    def scroll(self, first: int) -> None:
        super().scroll(first)
        self.following = self._cursor is None and self.first >= self.num_rows - self.page

    def action_step(self, rows: int) -> None:
        """Move by so many events. The first step up from the newest picks that one."""
        numbers = [number for number, line in self._events if line.level >= self.level]
        if not numbers or (self._cursor is None and rows > 0):
            return
        if self._cursor is None:
            place = len(numbers) + rows
        else:
            place = bisect_left(numbers, self._cursor) + rows
        self._pick(numbers[max(0, min(place, len(numbers) - 1))])

    def action_edge(self, direction: int) -> None:
        if direction < 0:
            self.action_step(-len(self._events))
        else:
            self._cursor = None
            self.scroll(self.num_rows)
            self.redraw()

    @property
    def lines(self) -> list[LogLine]:
        """The stored events, oldest first."""
        return [line for _, line in self._events]

    @property
    def current(self) -> LogLine | None:
        """The event under the cursor; None while it follows the newest."""
        return next((line for number, line in self._events if number == self._cursor), None)

    def action_choose(self) -> None:
        if line := self.current:
            self.post_message(self.Chosen(line))

    def on_click(self, event: events.Click) -> None:
        place = event.y - 1 + self.first
        if 0 <= event.y - 1 < self.page and place < self.num_rows:
            self._pick(self._rows[place].event)

    def _pick(self, event: int) -> None:
        """Put the cursor on an event, and scroll all of it into view."""
        self._cursor = event
        places = [place for place, row in enumerate(self._rows) if row.event == event]
        for place in reversed(places):
            self.reveal(place)
        self.following = False
        self.redraw()

    def action_level(self) -> None:
        """Hide one more level, or show all again."""
        self.level = Level((self.level + 1) % len(Level))
        self.redraw()

    def title(self) -> str:
        return f"Log · {self.keys['level']} level: {self.level.name.lower()}"

    def footer(self) -> str:
        if self.following:
            return ""
        newer = self.num_rows - self.page - self.first
        lines = f"{counted(newer, 'newer line')} · " if newer else ""
        return f"{lines}{self.keys['edge(1)']} to follow"

    def draw(self, width: int, height: int) -> list[Line]:
        # The rows are laid out before the frame is drawn: its edge shows their number.
        self._lay_out(width - 4 if self.framed else width)
        return super().draw(width, height)

    def body(self, width: int, height: int) -> list[Line]:
        if not self._rows:
            text = "Nothing has happened yet." if not self._events else "Nothing of this level."
            return [self.line(width).add(shorten(text, width), self.palette.muted)]
        return [self._row(row, width) for row in self._rows[self.first : self.first + height]]

    def _lay_out(self, width: int) -> None:
        """Break the events into rows. The view stays on the same event."""
        anchor = self._rows[self.first][:2] if self._rows and not self.following else None
        self._rows = list(self._pieces(max(width - sum(_lead(width)), 1)))
        if anchor is None:
            self.scroll(self.num_rows)
        else:
            self.scroll(bisect_left(self._rows, anchor, key=lambda row: row[:2]))

    def _pieces(self, width: int) -> Iterator[_Row]:
        for event, line in self._events:
            if line.level < self.level:
                continue
            fits = len(line.text) <= width  # as nearly all do
            pieces = (line.text,) if fits else _broken(line.text, width)
            for piece, text in enumerate(pieces):
                yield _Row(event, piece, line, text)

    def _row(self, row: _Row, width: int) -> Line:
        palette, lead = self.palette, _lead(width)
        line = self.line(width)
        current = row.event == self._cursor and self.has_focus
        over = palette.cursor if current else Style.null()
        text = palette.text + over
        muted = text if current else palette.muted
        if row.piece:
            return line.add(" " * sum(lead), text).add(row.text, text).pad(text)
        said = row.line
        style = text if current else self._level_style(said.level)
        cells = (time_of_day(said.time), muted), (said.level.name[0], style), (said.source, muted)
        for (word, of), cell in zip(cells, lead, strict=True):
            line.cell(word, cell, of)
        return line.add(row.text, text if said.level < Level.WARNING else style).pad(text)

    def _level_style(self, level: Level) -> Style:
        palette = self.palette
        return (palette.muted, palette.good, palette.warn, palette.bad)[level]


# Breaking takes 20 us for a line, and 100 us for one of 1,000 characters. Each new line causes a
# new layout of all lines.
@lru_cache(maxsize=2 * CAPACITY)
def _broken(text: str, width: int) -> tuple[str, ...]:
    return tuple(textwrap.wrap(text, width))


def _lead(width: int) -> tuple[int, int, int]:
    """The cells of time, level and source in a row of `width`."""
    return next(lead for lead, text in _LEADS if width - sum(lead) >= text)
