"""BatchTrack: one kind of work of the batch chart's columns, on its own axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.style import Style

from widgets.glyphs import Glyphs
from widgets.palette import Palette


@dataclass(slots=True)
class BatchColumn:
    """Means over the steps of a column.

    Attributes:
        padding: prompt tokens that a padded batch would compute in addition to the prefill.
        ended: tokens that it would decode in addition, for members that have ended.
    """

    steps: int = 0
    prefill: float = 0.0
    decode: float = 0.0
    padding: float = 0.0
    ended: float = 0.0
    budget: int = 0

    def add(self, prefill: int, decode: int, padding: int, ended: int, budget: int) -> None:
        self.steps += 1
        self.prefill += (prefill - self.prefill) / self.steps
        self.decode += (decode - self.decode) / self.steps
        self.padding += (padding - self.padding) / self.steps
        self.ended += (ended - self.ended) / self.steps
        self.budget = max(self.budget, budget)


@dataclass(frozen=True, slots=True)
class BatchTrack:
    """One of the two kinds of work, on its own axis.

    Attributes:
        values: of each column.
        waste: additional work of a padded batch, for each column.
        limits: the budget of each column; 0 for none.
        top: the end of the axis.
        ramp: the levels of a cell.
    """

    values: Sequence[float]
    waste: Sequence[float]
    limits: Sequence[int]
    top: float
    ramp: str
    style: Style

    def stack(
        self, x: int, height: int, ticked: bool, glyphs: Glyphs, palette: Palette
    ) -> list[tuple[str, Style]]:
        """A column's cells from bottom to top. A cell has as many levels as a ramp has
        characters."""
        ramp = self.ramp
        levels = len(ramp)
        scale = height * levels / self.top
        empty = (glyphs.tick, palette.tick) if ticked else (" ", palette.text)
        cells = [empty] * height
        if 0 < self.limits[x] * scale <= height * levels:
            level = max(round(self.limits[x] * scale) - 1, 0)
            mark = glyphs.budget[level % levels * len(glyphs.budget) // levels]
            cells[min(level // levels, height - 1)] = (mark, palette.muted)
        # One token of 2,048 would round to nothing, but any work has to be visible.
        value = self.values[x]
        filled = min(max(round(value * scale), 1), height * levels) if value else 0
        computed = -(-filled // levels)
        if self.waste[x]:
            reach = round((value + self.waste[x]) * scale / levels)
            for row in range(computed, min(max(reach, computed + 1), height)):
                cells[row] = (glyphs.waste, palette.muted)
        for row in range(computed):
            cells[row] = (ramp[min(filled - row * levels, levels) - 1], self.style)
        return cells
