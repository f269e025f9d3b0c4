"""BatchChart: the work of each step: prefill, decode, and what a padded batch would waste."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import groupby
from typing import ClassVar

from rich.style import Style
from textual.binding import Binding, BindingType

from engine.api.glossary import gloss, glosses
from engine.api.knobs import KnobChange
from engine.api.telemetry import StepRecord
from widgets.figures import change_text, compact, count, duration
from widgets.glyphs import UNICODE, Glyphs
from widgets.line import Line, shorten
from widgets.panels.batch_track import BatchColumn, BatchTrack
from widgets.panels.panel import Panel
from widgets.panels.plot import axis_top

MAX_STEPS_PER_COLUMN = 64
_ROOM_FOR_STEPS = 14
_MIN_TRACK = 2  # lines
_CELL_WIDTH = 8
# A single decode must not look like a full batch.
_LEAST_DECODES = 4.0
HELD_SECONDS = 10.0


class HeldTop:
    """The end of an axis, which grows at once. It shrinks after `HELD_SECONDS` in which less was
    enough, to the maximum needed during that time."""

    def __init__(self) -> None:
        self._top = 0.0
        self._since = 0.0  # when all of it was needed last
        self._less = 0.0  # the maximum needed since

    def of(self, needed: float, now: float) -> float:
        """The current end of the axis.

        Args:
            needed: the end that the current values need; 0 without values.
            now: seconds. Another engine's clock may begin anew.
        """
        self._less = max(self._less, needed)
        is_held = 0 <= now - self._since <= HELD_SECONDS
        if needed >= self._top or (self._less and not is_held):
            self._top, self._since, self._less = self._less, now, 0.0
        return self._top


class ChartMode(StrEnum):
    """The unit of the columns."""

    TOKENS = "tokens"
    SEQUENCES = "sequences"


class BatchChart(Panel, can_focus=True):
    """The batch of the last steps: prefill above, decode below, each on its own axis, because a
    prompt of thousands of tokens would leave ten decodes no height. A column shows one step, or the
    mean of several.

    Above the actual work is the work that a padded batch would do in vain: the padding of prompts
    up to the longest, and members that have ended. A chart of sequences shows only the latter. If
    there is space, the last steps are listed below in figures.

    Columns have fixed ranges of step numbers, so that a column never changes once it is full.
    """

    GLOSS: ClassVar[Mapping[str, str]] = glosses(
        *("step", "prefill", "decode", "running", "waiting", "budget", "padding", "ended", "policy")
    )

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "m", "mode", "Tokens/sequences", tooltip="Count tokens, or sequences", id="batch.mode"
        ),
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
        self._columns: list[BatchColumn] = []
        self._first = 0
        self._tops = HeldTop(), HeldTop()  # of prefill and decode

    def show(
        self, records: Sequence[StepRecord], budget: int, marks: Sequence[KnobChange] = ()
    ) -> None:
        """Show the newest steps.

        Args:
            records: consecutive steps, oldest first.
            budget: the max_num_batched_tokens in force.
            marks: changes of knobs, oldest first.
        """
        self._records, self._budget, self._marks = records, budget, marks
        self.redraw()

    def action_mode(self) -> None:
        sequences = self.mode is ChartMode.TOKENS
        self.mode = ChartMode.SEQUENCES if sequences else ChartMode.TOKENS
        self._tops = HeldTop(), HeldTop()
        self.redraw()

    def action_zoom(self, closer: int) -> None:
        steps = self.steps_per_column // 2 if closer > 0 else self.steps_per_column * 2
        self.steps_per_column = min(max(steps, 1), MAX_STEPS_PER_COLUMN)
        self._tops = HeldTop(), HeldTop()
        self.redraw()

    def title(self) -> str:
        glyphs = self.glyphs
        parts = [
            "Batch per step",
            f"{self.mode}: {glyphs.prefill[-1]} prefill {glyphs.decode[-1]} decode",
        ]
        wasted = {
            "padding": any(column.padding for column in self._columns),
            "ended": any(column.ended for column in self._columns),
        }
        if words := [word for word, seen in wasted.items() if seen]:
            parts[-1] += f" {glyphs.waste} {', '.join(words)}"
        if self.mode is ChartMode.TOKENS and self._records:
            parts.append(f"budget {count(self._budget)}")
        if self.steps_per_column > 1:
            parts.append(f"1 col = {self.steps_per_column} steps")
        return " · ".join(parts)

    def footer(self) -> str:
        if not self._marks:
            return gloss("budget", "padding", "ended") if self.has_focus else ""
        last = self._marks[-1]
        what = change_text(last)
        return f"{self.glyphs.tick_head} {what} after step {count(last.step)} by {last.who}"

    def draw(self, width: int, height: int) -> list[Line]:
        # The columns are collected before the title is drawn, which names their kinds of work.
        inner = width - 4 if self.framed else width
        self._collect(max(inner - _label_width(inner) - 1, 0))
        return super().draw(width, height)

    def body(self, width: int, height: int) -> list[Line]:
        palette = self.palette
        if not self._records:
            return [self.line(width).add(shorten("No step has run yet.", width), palette.muted)]
        below = height // 3 if height >= _ROOM_FOR_STEPS else 1
        # Each of the two tracks has an axis with two labels, or is not drawn.
        if height - below < 2 * _MIN_TRACK:
            below = height
        chart = self._chart(width, height - below) if height > below else []
        return [*chart, *(self._steps(width, below) if below > 1 else [self._last_step(width)])]

    def _steps(self, width: int, height: int) -> list[Line]:
        """The last steps in figures, newest first, below a head."""
        palette = self.palette
        heads = ("step", "took", "forward", "prefill", "decode", "run", "wait")
        lines = [self._step_row(width, heads, "policy", palette.muted)]
        for place in range(1, min(height, len(self._records) + 1)):
            step = self._records[-place]
            cells = (
                count(step.step),
                duration(step.duration),
                duration(step.times.forward),
                count(step.prefill_tokens),
                count(step.decode_tokens),
                count(step.running),
                count(step.waiting),
            )
            note = step.policy
            if step.preempted:
                note += f" · preempted {count(len(step.preempted))}"
            style = palette.strong if place == 1 else palette.text
            lines.append(self._step_row(width, cells, note, style))
        return lines

    def _step_row(self, width: int, cells: Sequence[str], note: str, style: Style) -> Line:
        line = self.line(width)
        for cell in cells:
            line.cell(cell, _CELL_WIDTH, style, "right")
        return line.add("  ", style).add(shorten(note, line.room), style)

    def _last_step(self, width: int) -> Line:
        """The newest step in figures. If space is short, the least important ones are left out
        first."""
        last = self._records[-1]
        times = last.times
        phases = (
            ("fwd", times.forward),
            ("sched", last.plan),
            ("sample", times.sample),
            *([("mask", times.mask)] if times.mask else []),
            ("prep", times.prepare),
            ("commit", last.commit),
        )
        head = f"step {count(last.step)} · {duration(last.duration)}"
        rows = last.prefill_rows + last.decode_rows
        tail = f" · {count(rows)} seq · {count(last.num_tokens)} tok"
        if last.padding_tokens:
            tail += f" · {count(last.padding_tokens)} padding"
        if last.bubble_tokens:
            tail += f" · {count(last.bubble_tokens)} ended"
        text = head + tail
        for shown in range(1, len(phases) + 1):
            split = " ".join(f"{name} {duration(value)}" for name, value in phases[:shown])
            longer = f"{head} ({split}){tail}"
            if len(longer) > width:
                break
            text = longer
        return self.line(width).add(shorten(text, width), self.palette.text)

    def _chart(self, width: int, height: int) -> list[Line]:
        if not any(column.steps for column in self._columns):
            return []
        ticks = {self._place(mark) for mark in self._marks}
        prefill, decode = self._tracks()
        low = max(height * 2 // 5, _MIN_TRACK)
        lines: list[Line] = []
        for track, rows in ((prefill, height - low), (decode, low)):
            if not rows:
                continue
            first = not lines
            stacks = [
                track.stack(x, rows, x in ticks, self.glyphs, self.palette)
                for x in range(len(self._columns))
            ]
            if first:
                for x in ticks & set(range(len(stacks))):
                    stacks[x][-1] = (self.glyphs.tick_head, self.palette.tick)
                self._name_policies(stacks)
            lines += self._track_lines(stacks, width, track)
        return lines

    def _track_lines(
        self, stacks: list[list[tuple[str, Style]]], width: int, track: BatchTrack
    ) -> list[Line]:
        """The lines of a track, with its axis."""
        rows = len(stacks[0]) if stacks else 0
        lines: list[Line] = []
        for row in range(rows - 1, -1, -1):
            line = self.line(width)
            label = _label(row, rows, track.top)
            line.cell(label, _label_width(width), self.palette.muted, "right")
            line.add(self.glyphs.axis if label else self.glyphs.divider, self.palette.frame)
            for style, run in groupby((stack[row] for stack in stacks), _style):
                line.add("".join(glyph for glyph, _ in run), style)
            lines.append(line)
        return lines

    def _tracks(self) -> tuple[BatchTrack, BatchTrack]:
        """Prefill and decode of the columns. In tokens, the prefill axis includes the budget unless
        that is far above the work."""
        columns, glyphs, palette = self._columns, self.glyphs, self.palette
        tokens = self.mode is ChartMode.TOKENS
        used = [column for column in columns if column.steps]
        peak = max(column.prefill + column.padding for column in used)
        limit = max(*(column.budget for column in used), self._budget) if tokens else 0
        needed = limit if 0 < limit < peak * 4 else axis_top(peak) if peak else 0.0
        decodes = max(_LEAST_DECODES, *(column.decode + column.ended for column in used))
        now, (prefill_top, decode_top) = self._records[-1].end, self._tops
        prefill = BatchTrack(
            [column.prefill for column in columns],
            [column.padding for column in columns],
            [column.budget for column in columns],
            prefill_top.of(needed, now) or limit or axis_top(peak),
            glyphs.prefill,
            palette.prefill,
        )
        decode = BatchTrack(
            [column.decode for column in columns],
            [column.ended for column in columns],
            [0] * len(columns),
            decode_top.of(axis_top(decodes), now),
            glyphs.decode,
            palette.decode,
        )
        return prefill, decode

    def _collect(self, plot_width: int) -> None:
        """Sort the newest steps into the columns of the plot; the last column is the newest."""
        per_column = self.steps_per_column
        self._columns = columns = [BatchColumn() for _ in range(plot_width)]
        if not self._records:
            return
        self._first = first = self._records[-1].step // per_column - plot_width + 1
        tokens = self.mode is ChartMode.TOKENS
        for record in reversed(self._records):
            x = record.step // per_column - first
            if not 0 <= x < plot_width:  # older, or of another model, which numbers its own steps
                break
            ended = record.bubble_tokens
            if tokens:
                work = record.prefill_tokens, record.decode_tokens
                columns[x].add(*work, record.padding_tokens, ended, record.budget)
            else:
                columns[x].add(record.prefill_rows, record.decode_rows, 0, ended, 0)

    def _place(self, mark: KnobChange) -> int:
        """The column of the first step after a change."""
        return (mark.step + 1) // self.steps_per_column - self._first

    def _name_policies(self, stacks: list[list[tuple[str, Style]]]) -> None:
        """Write the new policy's name beside the tick of each change of policy, if no column
        reaches the top line."""
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


def _label_width(width: int) -> int:
    return min(5, width // 4)


def _style(cell: tuple[str, Style]) -> Style:
    return cell[1]


def _label(row: int, height: int, top: float) -> str:
    """The axis label of a row: all, half or nothing of `top`. The last two are left out if there
    are few rows."""
    if row == height - 1:
        return compact(top)
    if row == 0:
        return "0"
    return compact(top / 2) if row == (height - 1) // 2 and height >= 5 else ""
