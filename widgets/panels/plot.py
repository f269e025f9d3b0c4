"""Plot and Sparkline: a line over time, with scale, target and changes of knobs, or in a row."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.style import Style

from widgets.figures import lasting
from widgets.line import Line
from widgets.line_view import LineView

AXIS_WIDTH = 6
# Points further apart are not connected, because the values between them are unknown.
BRIDGE_SECONDS = 10.0
# The dots of a braille cell, from the bottom row to the top one, left and right.
_DOTS = ((0x40, 0x80), (0x04, 0x20), (0x02, 0x10), (0x01, 0x08))
CAPACITY = 120


def axis_top(peak: float, limit: float = 0.0) -> float:
    """The end of an axis from 0: the next of 1, 2, 5, 10 ... at or above the peak, and above the
    limit too unless that would leave the peak in the lowest eighth."""
    reach = max(peak, limit) if peak * 8 >= limit else peak
    if reach <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(reach))
    return next(unit * step for step in (1, 2, 5, 10) if unit * step >= reach * (1 - 1e-9))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """The data of a plot.

    Attributes:
        points: (time, value), oldest first.
        until: the time at the right end.
        span: seconds from the left end to the right end.
        target: the value to meet; None if there is none.
        marks: times of knob changes.
        label: formats a value.
    """

    points: Sequence[tuple[float, float]]
    until: float
    span: float
    target: float | None
    marks: Sequence[float]
    label: Callable[[float], str]

    def lines(self, view: LineView, width: int, height: int) -> list[Line]:
        """The plot in at most `height` lines; the last one is the time axis."""
        columns, rows = max(width - AXIS_WIDTH - 1, 1), max(height - 1, 1)
        top = axis_top(max((v for _, v in self.points), default=0.0), self.target or 0.0)
        cells = self._cells(view, columns, rows, top)
        lines = []
        for row in range(rows - 1, -1, -1):
            line = view.line(width)
            text, style = self._tick(view, row, rows, top)
            line.cell(text, AXIS_WIDTH, style, "right")
            line.add(view.glyphs.axis if text else view.glyphs.divider, view.palette.frame)
            for run_style, run in groupby(cells[row], lambda cell: cell[1]):
                line.add("".join(glyph for glyph, _ in run), run_style)
            lines.append(line)
        begin, middle = f"-{lasting(self.span)}", f"-{lasting(self.span / 2)}"
        axis = view.line(width).add(" " * (AXIS_WIDTH + 1), view.palette.muted)
        axis.cell(begin, columns // 2 - len(middle) // 2, view.palette.muted)
        if columns >= 30:
            axis.add(middle, view.palette.muted)
        axis.cell("now", axis.room, view.palette.muted, "right")
        return [*lines, axis][:height]

    def _tick(self, view: LineView, row: int, rows: int, top: float) -> tuple[str, Style]:
        """The axis label beside a row: the target, else an end or the middle."""
        palette = view.palette
        if self.target is not None and self.target <= top:
            at = self._row(self.target, rows, top)
            if row == at:
                return f"≤{self.label(self.target)}", palette.good
            # Two nearly equal labels would say less than one, if there is another below.
            if row == rows - 1 and at == rows - 2 and rows > 2:
                return "", palette.muted
        if row == rows - 1:
            return self.label(top), palette.muted
        if row == 0:
            return "0", palette.muted
        if rows >= 5 and row == rows // 2:
            return self.label(top / 2), palette.muted
        return "", palette.muted

    def _cells(
        self, view: LineView, columns: int, rows: int, top: float
    ) -> list[list[tuple[str, Style]]]:
        """The cells, lowest row first: the line, behind it the target and the marks, or over it a
        target that is above the chart."""
        glyphs, palette = view.glyphs, view.palette
        wide, high = (2, 4) if glyphs.unicode else (1, 1)
        masks = [[0] * columns for _ in range(rows)]
        for x, y in self._dots(columns * wide, rows * high, top):
            dots = _DOTS[y % high][x % wide] if glyphs.unicode else 1
            masks[y // high][x // wide] |= dots
        at = None
        if self.target is not None and self.target <= top:
            at = self._row(self.target, rows, top)
        ticks = {self._column(mark, columns) for mark in self.marks}
        cells: list[list[tuple[str, Style]]] = []
        for row, line in enumerate(masks):
            above = at is not None and row > at
            cells.append([])
            for x, mask in enumerate(line):
                if mask:
                    glyph = chr(0x2800 + mask) if glyphs.unicode else "*"
                    cell = glyph, palette.warn if above else palette.decode
                elif x in ticks:
                    cell = glyphs.tick_head if row == rows - 1 else glyphs.tick, palette.tick
                elif row == at:
                    cell = glyphs.budget[len(glyphs.budget) // 2], palette.good
                else:
                    cell = " ", palette.text
                cells[-1].append(cell)
        if self.target is not None and self.target > top and rows > 1:
            # It is above the chart; with a single row, the line needs it.
            said = f"≤{self.label(self.target)} ↑"[:columns]
            cells[-1][: len(said)] = [(sign, palette.good) for sign in said]
        return cells

    def _dots(self, columns: int, rows: int, top: float) -> set[tuple[int, int]]:
        """The dots of the line, in so many columns and rows of dots; the lowest row is 0."""
        dots: set[tuple[int, int]] = set()
        before: tuple[float, int, int] | None = None
        for time, value in self.points:
            x = self._column(time, columns)
            if not 0 <= x < columns:
                continue
            y = min(int(value / top * rows), rows - 1)
            dots.add((x, y))
            if before is not None and time - before[0] <= BRIDGE_SECONDS:
                _, x0, y0 = before
                for step in range(1, max(abs(x - x0), abs(y - y0))):
                    share = step / max(abs(x - x0), abs(y - y0))
                    dots.add((round(x0 + (x - x0) * share), round(y0 + (y - y0) * share)))
            before = time, x, y
        return dots

    def _column(self, time: float, columns: int) -> int:
        """The column of a moment. Columns begin at multiples of their duration, so that the drawing
        moves as a whole."""
        seconds = self.span / columns
        return math.floor(time / seconds) - math.floor(self.until / seconds) + columns - 1

    def _row(self, value: float, rows: int, top: float) -> int:
        return min(int(value / top * rows), rows - 1)


class Sparkline:
    """The last values of one quantity: at most `CAPACITY`, newest last."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=CAPACITY)

    def add(self, value: float | None) -> None:
        """Append a value; None and NaN leave a gap."""
        self._values.append(math.nan if value is None else value)

    def cells(self, ramp: str, width: int) -> str:
        """The newest values in exactly `width` cells, scaled from 0 to their maximum."""
        values = list(self._values)[-width:] if width > 0 else []
        top = max((v for v in values if math.isfinite(v)), default=0.0)
        return "".join(_cell(v, top, ramp) for v in values).rjust(width)


def _cell(value: float, top: float, ramp: str) -> str:
    if not math.isfinite(value):
        return " "
    level = value / top * (len(ramp) - 1) if top > 0 else 0
    return ramp[max(0, round(level))]
