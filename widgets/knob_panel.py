"""KnobPanel: the engine's live policy, to be turned."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import ClassVar

from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from engine.knobs import KnobState, KnobValue
from widgets.figures import setting
from widgets.glyphs import UNICODE, Glyphs, Mark
from widgets.line import Line, shorten
from widgets.scroll_panel import ScrollPanel

_NAME_WIDTH = 22
_VALUE_WIDTH = 12

# Where a knob at 0 goes when it is doubled, as a share of its range: an engine whose prefill chunk
# had no cap would nearly stop at 1.
_FIRST_SHARE = 1 / 32


def turned(knob: KnobState, value: KnobValue, up: bool) -> KnobValue:
    """`value` one turn on, within what is allowed."""
    allowed, step = knob.allowed, knob.spec.step
    if allowed.choices:
        place = allowed.choices.index(value) if value in allowed.choices else 0
        return allowed.choices[(place + (1 if up else -1)) % len(allowed.choices)]
    if isinstance(value, str):
        return value
    if step < 1:
        new: float = round(value + (step if up else -step), 9)
    elif up:
        new = value * step or max(round(allowed.high * _FIRST_SHARE), 1)
    else:
        new = value // step
    new = min(max(new, allowed.low), allowed.high)
    return int(new) if isinstance(value, int) else float(new)


def parsed(text: str) -> KnobValue:
    """A typed number; what is none stays text, for the engine to refuse."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


class KnobPanel(ScrollPanel, can_focus=True):
    """One line a knob: what is asked for, and what holds where that differs.

    A turn is posted and shows at once, so that the next one starts from it, though the engine's
    state comes later and by way of the turns before. It is forgotten when the engine has followed,
    went elsewhere, or refused.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "choose(-1)", "Up", show=False, id="knobs.up"),
        Binding("down", "choose(1)", "Down", show=False, id="knobs.down"),
        Binding("left", "turn(False)", "Less", show=False, id="knobs.less"),
        Binding("right", "turn(True)", "More", show=False, id="knobs.more"),
        Binding("space", "switch", "Toggle", id="knobs.toggle"),
        Binding("enter", "edit", "Edit", id="knobs.edit"),
        Binding("u", "undo", "Undo", id="knobs.undo"),
    ]

    class Turned(Message):
        """A knob is to be set."""

        def __init__(self, name: str, value: KnobValue) -> None:
            super().__init__()
            self.name = name
            self.value = value

    class Undone(Message):
        """The last change of knobs is to be taken back."""

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self.cursor = 0
        self._knobs: Sequence[KnobState] = ()
        self._asked: dict[str, list[KnobValue]] = {}
        self._typed: str | None = None
        self._refusal = ""

    def show(self, knobs: Sequence[KnobState]) -> None:
        """Show the knobs as they stand."""
        self._knobs = knobs
        self.cursor = max(min(self.cursor, len(knobs) - 1), 0)
        for knob in knobs:
            path = self._asked.get(knob.name, [])
            if path and (knob.requested == path[-1] or knob.requested not in path):
                del self._asked[knob.name]
        self.redraw()

    def refuse(self, sentence: str) -> None:
        """Say why the last change was not made, until the next key."""
        self._refusal = sentence
        self._asked.clear()
        self.redraw()

    @property
    def num_rows(self) -> int:
        return len(self._knobs)

    @property
    def page(self) -> int:
        return max(super().page - self._help_lines, 0)

    def action_choose(self, rows: int) -> None:
        self._go_to(self.cursor + rows)

    def action_turn(self, up: bool) -> None:
        if self._knobs:
            knob = self._knobs[self.cursor]
            self._ask(knob, turned(knob, self._value(knob), up))

    def action_switch(self) -> None:
        if self._knobs and self._knobs[self.cursor].allowed.choices:
            self.action_turn(True)

    def action_edit(self) -> None:
        if not self._knobs:
            return
        knob = self._knobs[self.cursor]
        if knob.allowed.choices:
            self.action_turn(True)
        else:
            self._typed = setting(self._value(knob))
            self.redraw()

    def action_undo(self) -> None:
        self._asked.clear()
        self.post_message(self.Undone())

    def on_key(self, event: events.Key) -> None:
        """Any key takes the refusal away; digits are typed into the number under the cursor."""
        if self._refusal:
            self._refusal = ""
            self.redraw()
        if not self._knobs or self._knobs[self.cursor].allowed.choices:
            return
        character = event.character or ""
        if character and character in "0123456789.-" + ("e" if self._typed else ""):
            self._typed = (self._typed or "") + character
        elif self._typed is None:
            return
        elif event.key == "backspace":
            self._typed = self._typed[:-1]
        elif event.key == "enter":
            knob, text, self._typed = self._knobs[self.cursor], self._typed, None
            if text:
                self._ask(knob, parsed(text))
        else:
            self._typed = None
            if event.key != "escape":
                self.redraw()
                return
        event.stop()
        event.prevent_default()
        self.redraw()

    def on_blur(self) -> None:
        self._typed = None
        self.redraw()

    def on_click(self, event: events.Click) -> None:
        span, x = self._value_span, event.x - (2 if self.framed else 0)
        row = event.y - 1 + self.first
        if not (0 <= event.y - 1 < self.page and row < len(self._knobs)):
            return
        self._go_to(row)
        if self._knobs[row].allowed.choices:
            if x in span:
                self.action_turn(True)
        elif x in span[:2]:
            self.action_turn(False)
        elif x in span[-2:]:
            self.action_turn(True)

    def title(self) -> str:
        return "Scheduler · live · u undo"

    def body(self, width: int, height: int) -> list[Line]:
        if not self._knobs:
            return [self.line(width).add(shorten("No model yet.", width), self.palette.muted)]
        self.reveal(self.cursor)  # lines may have become fewer
        rows = range(self.first, min(self.first + self.page, len(self._knobs)))
        lines = [self._row(self._knobs[row], width, row == self.cursor) for row in rows]
        help_lines = self._help_lines
        lines += [self.line(width) for _ in range(height - help_lines - len(lines))]
        if self._refusal:
            mark = self.glyphs.marks[Mark.FAILED]
            text, style = f"{mark} {self._refusal}", self.palette.bad
        else:
            text, style = _help(self._knobs[self.cursor]), self.palette.muted
        wrapped = textwrap.wrap(text, width)
        if len(wrapped) > help_lines > 0:
            wrapped[help_lines - 1] = shorten(" ".join(wrapped[help_lines - 1 :]), width)
        return lines + [self.line(width).add(line, style) for line in wrapped[:help_lines]]

    @property
    def _help_lines(self) -> int:
        room = super().page
        return 2 if room >= 6 else 1 if room >= 3 else 0

    @property
    def _value_span(self) -> range:
        """The cells that hold the values."""
        width = self.size.width - (4 if self.framed else 0)
        length = max(min(_VALUE_WIDTH, width - 3), 5)
        start = max(min(2 + _NAME_WIDTH + 1, width - length), 3)
        return range(start, start + length)

    def _value(self, knob: KnobState) -> KnobValue:
        """What is asked for, turns that the engine has not seen yet included."""
        return self._asked[knob.name][-1] if knob.name in self._asked else knob.requested

    def _go_to(self, row: int) -> None:
        self.cursor = max(0, min(row, len(self._knobs) - 1))
        self._typed = None
        self.redraw()

    def _ask(self, knob: KnobState, value: KnobValue) -> None:
        if value == self._value(knob):
            return
        self._asked.setdefault(knob.name, [knob.requested]).append(value)
        self.post_message(self.Turned(knob.name, value))
        self.redraw()

    def _row(self, knob: KnobState, width: int, current: bool) -> Line:
        palette, value = self.palette, self._value(knob)
        over = palette.cursor if current and self.has_focus else Style.null()
        text, strong = palette.text + over, palette.strong + over
        muted = text if over else palette.muted
        line = self.line(width)
        line.cell(self.glyphs.cursor if current else "", 2, strong)
        span = self._value_span
        line.cell(knob.name, span.start - 3, text).add(" ", text)
        if isinstance(value, bool):
            line.cell("[x]" if value else "[ ]", len(span), strong)
        elif knob.allowed.choices:
            choice = f"{setting(value)} {self.glyphs.choose}"
            line.cell(choice, max(len(span), min(len(choice), line.room)), strong)
        else:
            typing = current and self._typed is not None
            shown = f"{self._typed}_" if typing else setting(value)
            line.add(self.glyphs.less + " ", muted)
            line.cell(shown, len(span) - 4, strong, "right")
            line.add(" " + self.glyphs.more, muted)
        if knob.effective != knob.requested:
            line.add(f"  now {setting(knob.effective)}", palette.warn + over)
        if knob.note:
            line.add("  ", text).add(shorten(knob.note, line.room), muted)
        return line.pad(text)


def _help(knob: KnobState) -> str:
    """What a knob means, what it may be, and what is the matter with it."""
    unit = f" {knob.spec.unit}" if knob.spec.unit else ""
    note = f" Now {setting(knob.effective)}: {knob.note}." if knob.note else ""
    return f"{knob.spec.meaning}: {knob.allowed}{unit}.{note}"
