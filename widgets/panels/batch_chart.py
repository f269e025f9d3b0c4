"""BatchChart: what each step computed: decode, then prefill, and on top what was for nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import ClassVar

from rich.style import Style
from textual.binding import Binding, BindingType

from engine.api.knobs import KnobChange
from engine.api.telemetry import StepRecord
from widgets.figures import change_text, compact, count, ms
from widgets.glyphs import UNICODE, Glyphs
from widgets.line import Line, shorten
from widgets.panels.panel import Panel

MAX_STEPS_PER_COLUMN = 64


class ChartMode(StrEnum):
    """What the columns count."""

    TOKENS = "tokens"
    SEQUENCES = "sequences"


@dataclass(slots=True)
class Column:
    """Means over the steps that share a column.

    Attributes:
        waste: padding and bubbles, which this engine counts but does not compute.
    """

    steps: int = 0
    prefill: float = 0.0
    decode: float = 0.0
    waste: float = 0.0
    budget: int = 0

    def add(self, prefill: int, decode: int, waste: int, budget: int) -> None:
        self.steps += 1
        self.prefill += (prefill - self.prefill) / self.steps
        self.decode += (decode - self.decode) / self.steps
        self.waste += (waste - self.waste) / self.steps
        self.budget = max(self.budget, budget)

    @property
    def total(self) -> float:
        return self.prefill + self.decode + self.waste


class BatchChart(Panel, can_focus=True):
    """The batch of the last steps. A column shows one step, or the mean of several.

    Above what was computed stands what a padded batch would compute besides, for nothing: the
    padding of prompts up to the longest, and members that have ended. A chart of sequences shows
    only the latter.

    Columns hold fixed ranges of step numbers, so that a column never changes once it is full.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("m", "mode", "Tokens/sequences", id="batch.mode"),
        Binding("plus,equals_sign", "zoom(1)", "Fewer steps", key_display="+", id="batch.in"),
        Binding("minus", "zoom(-1)", "More steps", key_display="-", id="batch.out"),
    ]

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self.mode = ChartMode.TOKENS
        self.steps_per_column = 1
        self._records: Sequence[StepRecord] = ()
        self._budget = 0
        self._marks: Sequence[KnobChange] = ()
        self._columns: list[Column] = []
        self._first = 0

    def show(
        self, records: Sequence[StepRecord], budget: int, marks: Sequence[KnobChange] = ()
    ) -> None:
        """Show the newest steps.

        Args:
            records: consecutive steps, the oldest first.
            budget: the max_num_batched_tokens in force.
            marks: changes of knobs, the oldest first.
        """
        self._records, self._budget, self._marks = records, budget, marks
        self.redraw()

    def action_mode(self) -> None:
        sequences = self.mode is ChartMode.TOKENS
        self.mode = ChartMode.SEQUENCES if sequences else ChartMode.TOKENS
        self.redraw()

    def action_zoom(self, closer: int) -> None:
        steps = self.steps_per_column // 2 if closer > 0 else self.steps_per_column * 2
        self.steps_per_column = min(max(steps, 1), MAX_STEPS_PER_COLUMN)
        self.redraw()

    def title(self) -> str:
        glyphs = self.glyphs
        parts = [
            "Batch per step",
            f"{self.mode}: {glyphs.prefill[-1]} prefill {glyphs.decode[-1]} decode",
        ]
        if any(column.waste for column in self._columns):
            tokens = self.mode is ChartMode.TOKENS
            parts[-1] += f" {glyphs.waste} {'padding' if tokens else 'ended'}"
        if self.mode is ChartMode.TOKENS and self._records:
            parts.append(f"budget {count(self._budget)}")
        if self.steps_per_column > 1:
            parts.append(f"1 col = {self.steps_per_column} steps")
        return " · ".join(parts)

    def footer(self) -> str:
        if not self._marks:
            return ""
        last = self._marks[-1]
        what = change_text(last)
        return f"{self.glyphs.tick_head} {what} after step {count(last.step)} by {last.who}"

    def draw(self, width: int, height: int) -> list[Line]:
        # The columns are collected before the title is drawn, which names the kinds in them.
        inner = width - 4 if self.framed else width
        self._collect(max(inner - _label_width(inner) - 1, 0))
        return super().draw(width, height)

    def body(self, width: int, height: int) -> list[Line]:
        palette = self.palette
        if not self._records:
            return [self.line(width).add(shorten("No step has run yet.", width), palette.muted)]
        chart = self._chart(width, height - 1) if height > 1 else []
        return [*chart, self._last_step(width)]

    def _last_step(self, width: int) -> Line:
        """The newest step in figures. If room is short, what matters least is left out first."""
        last = self._records[-1]
        times = last.times
        phases = (
            ("fwd", times.forward),
            ("sched", last.plan),
            ("sample", times.sample),
            ("prep", times.prepare),
            ("commit", last.commit),
        )
        head = f"step {count(last.step)} · {ms(last.duration)} ms"
        rows = last.prefill_rows + last.decode_rows
        tail = f" · {count(rows)} seq · {count(last.num_tokens)} tok"
        if last.padding_tokens:
            tail += f" · {count(last.padding_tokens)} padding"
        if last.bubble_tokens:
            tail += f" · {count(last.bubble_tokens)} ended"
        text = head + tail
        for shown in range(1, len(phases) + 1):
            split = " ".join(f"{name} {ms(value)}" for name, value in phases[:shown])
            longer = f"{head} ({split}){tail}"
            if len(longer) > width:
                break
            text = longer
        return self.line(width).add(shorten(text, width), self.palette.text)

    def _chart(self, width: int, height: int) -> list[Line]:
        used = [column for column in self._columns if column.steps]
        if not used:
            return []
        label_width = _label_width(width)
        tokens = self.mode is ChartMode.TOKENS
        peak = max(column.total for column in used)
        top = _axis_top(peak, max(*(c.budget for c in used), self._budget) if tokens else 1)
        levels = len(self.glyphs.prefill)
        scale = height * levels / top
        ticks = {self._place(mark) for mark in self._marks}
        stacks = [
            self._stack(column, height, scale, x in ticks) for x, column in enumerate(self._columns)
        ]
        self._name_policies(stacks)
        lines = []
        for row in range(height - 1, -1, -1):
            line = self.line(width)
            label = _label(row, height, top)
            line.cell(label, label_width, self.palette.muted, "right")
            line.add(self.glyphs.axis if label else self.glyphs.divider, self.palette.frame)
            for style, run in groupby((stack[row] for stack in stacks), _style):
                line.add("".join(glyph for glyph, _ in run), style)
            lines.append(line)
        return lines

    def _collect(self, plot_width: int) -> None:
        """Put the newest steps into the columns of the plot; the last column is the newest."""
        per_column = self.steps_per_column
        self._columns = columns = [Column() for _ in range(plot_width)]
        if not self._records:
            return
        self._first = first = self._records[-1].step // per_column - plot_width + 1
        tokens = self.mode is ChartMode.TOKENS
        for record in reversed(self._records):
            x = record.step // per_column - first
            if not 0 <= x < plot_width:  # older, or of another model, which counted its own steps
                break
            if tokens:
                waste = record.padding_tokens + record.bubble_tokens
                columns[x].add(record.prefill_tokens, record.decode_tokens, waste, record.budget)
            else:
                columns[x].add(record.prefill_rows, record.decode_rows, record.bubble_tokens, 0)

    def _place(self, mark: KnobChange) -> int:
        """The column of the first step after a change."""
        return (mark.step + 1) // self.steps_per_column - self._first

    def _name_policies(self, stacks: list[list[tuple[str, Style]]]) -> None:
        """Write beside the tick of each change of policy which one began, where no column reaches
        the top line."""
        free = {" ", *self.glyphs.budget}
        for mark in self._marks:
            x, name = self._place(mark), mark.after.policy
            if mark.before.policy == name or not 0 <= x < len(stacks):
                continue
            for start in (x + 1, x - len(name)):
                room = stacks[max(start, 0) : start + len(name)]
                if len(room) == len(name) and all(stack[-1][0] in free for stack in room):
                    for stack, character in zip(room, name, strict=True):
                        stack[-1] = (character, self.palette.tick)
                    break

    def _stack(
        self, column: Column, height: int, scale: float, ticked: bool
    ) -> list[tuple[str, Style]]:
        """A column's cells from bottom to top.

        Args:
            scale: how many levels a token is high. A cell has as many levels as a ramp has
                characters.
        """
        glyphs, palette = self.glyphs, self.palette
        levels = len(glyphs.prefill)
        # One token of 2,048 would round to nothing, but whatever was computed has to be seen.
        decode = max(round(column.decode * scale), 1) if column.decode else 0
        total = round((column.prefill + column.decode) * scale)
        if column.prefill:
            total = min(max(total, decode + 1), height * levels)
            decode = min(decode, total - 1)
        else:
            total = decode
        empty = (glyphs.tick, palette.tick) if ticked else (" ", palette.text)
        cells = [empty] * height
        if 0 < column.budget * scale <= height * levels:
            level = max(round(column.budget * scale) - 1, 0)
            mark = glyphs.budget[level % levels * len(glyphs.budget) // levels]
            cells[min(level // levels, height - 1)] = (mark, palette.muted)
        computed = -(-total // levels)
        if column.waste:
            reach = round(column.total * scale / levels)
            for row in range(computed, min(max(reach, computed + 1), height)):
                cells[row] = (glyphs.waste, palette.muted)
        for row in range(computed):
            below = min(max(decode - row * levels, 0), levels)
            filled = min(total - row * levels, levels)
            if below == filled:
                cells[row] = (glyphs.decode[filled - 1], palette.decode)
            elif below and filled == levels:
                cells[row] = (glyphs.decode[below - 1], palette.decode_below_prefill)
            else:
                cells[row] = (glyphs.prefill[filled - 1], palette.prefill)
        if ticked:
            cells[-1] = (glyphs.tick_head, palette.tick)
        return cells


def _label_width(width: int) -> int:
    return min(5, width // 4)


def _axis_top(peak: float, limit: int) -> float:
    """Where the axis ends: at the limit, or nearer to the peak if that is far below the limit.

    Otherwise a dozen decodes under a budget of 512 would be a flat line. The limit stands in the
    title.
    """
    return max(peak, limit) if peak * 4 > limit else max(8, 1 << (math.ceil(peak) - 1).bit_length())


def _style(cell: tuple[str, Style]) -> Style:
    return cell[1]


def _label(row: int, height: int, top: float) -> str:
    """The axis label of a row: all, half or nothing of `top`."""
    if row == height - 1:
        return compact(top)
    if row == 0:
        return "0"
    return compact(top / 2) if row == (height - 1) // 2 and height >= 5 else ""
