"""KnobPanel: shows the engine's knobs and changes them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import ClassVar

from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message

from engine.api.effect import Effect
from engine.api.glossary import glosses
from engine.api.knob_spec import KnobValue
from engine.api.knobs import KnobChange, KnobState
from widgets.figures import setting
from widgets.glyphs import UNICODE, Glyphs, Mark
from widgets.line import Line, shorten
from widgets.panels.field import Field, Leaving
from widgets.panels.knob_history import KnobHistory, effect_line
from widgets.panels.knob_row import KnobRow
from widgets.panels.knob_values import help_text, parsed, rank, turned, typeable, way_to_set
from widgets.panels.list_cursor import ListCursor
from widgets.panels.scroll_panel import ScrollPanel, list_keys


class KnobPanel(ScrollPanel, can_focus=True):
    """A line for each knob, with the requested value, and the effective one if that differs.

    The policy and the knobs that act under it come first, those that it ignores last. The history
    of the knobs can be shown instead. If there is space below, it shows the effect of the last
    change.

    A turn is posted and shown at once, so that the next one starts from it. The engine's state
    follows later, through the turns in between. A turn is dropped when the engine has reached it,
    has another value, or has refused it. A typed value that is refused can be edited.

    Attributes:
        history_shown: whether the history is on view.
    """

    GLOSS: ClassVar[Mapping[str, str]] = glosses(
        "policy", "tok/s", "TTFT", "TPOT", "batch", "waste"
    )

    KEYS: ClassVar[Mapping[str, str]] = {
        **{"policy": "p", "history": "h", "undo": "u"},
        **{"turn(False)": "←", "turn(True)": "→", "edit": "enter"},
    }

    BINDINGS: ClassVar[list[BindingType]] = [
        *list_keys("knobs"),
        Binding("left", "turn(False)", "Less", show=False, id="knobs.less"),
        Binding("right", "turn(True)", "More", show=False, id="knobs.more"),
        Binding("space", "switch", "Toggle", id="knobs.toggle"),
        Binding("enter", "edit", "Edit", id="knobs.edit"),
        Binding("h", "history", "History", id="knobs.history"),
    ]

    class Turned(Message):
        """Set a knob."""

        def __init__(self, name: str, value: KnobValue) -> None:
            super().__init__()
            self.name = name
            self.value = value

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self.history_shown = False
        self._cursor = ListCursor[KnobState](lambda knob: knob.name)
        self._history = KnobHistory(self)
        self._entries: list[Line] = []
        self._asked: dict[str, list[KnobValue]] = {}
        self._field = Field(self._typed, self._left, self._say_what_fits)
        self._entered = ("", "")  # knob and text of the last typed value
        self._refusal = ""

    def show(
        self,
        knobs: Sequence[KnobState],
        history: Sequence[KnobChange] = (),
        epoch: float = 0.0,
        effect: Effect | None = None,
    ) -> None:
        """Show the state of the knobs. The arguments of the history are those of
        `KnobHistory.set_changes`."""
        self._cursor.items = sorted(knobs, key=rank)
        self._history.set_changes(history, epoch, effect)
        for knob in knobs:
            path = self._asked.get(knob.name, [])
            if path and (knob.requested == path[-1] or knob.requested not in path):
                del self._asked[knob.name]
        if self.is_other(knobs, history, effect):
            self.redraw()

    def refuse(self, sentence: str) -> None:
        """Show, until the next key, why the last change was refused."""
        self._asked.clear()
        name, text = self._entered
        knob = self._chosen
        if self.has_focus and knob is not None and knob.name == name:
            self._edit(knob, text)
        self._refusal = sentence
        self.redraw()

    def forget(self) -> None:
        """Drop the turns that the engine has not reached yet."""
        self._asked.clear()
        self.redraw()

    @property
    def cursor(self) -> int:
        """Index of the knob under the cursor."""
        return self._cursor.place

    @property
    def current(self) -> str:
        """Name of the knob under the cursor. The cursor stays on it when the lines move."""
        knob = self._cursor.item
        return knob.name if knob else ""

    @current.setter
    def current(self, name: str) -> None:
        self._cursor.key = name

    @property
    def num_rows(self) -> int:
        return len(self._entries) if self.history_shown else len(self._cursor.items)

    @property
    def num_below(self) -> int:
        return 0 if self.footer() else super().num_below  # an effect needs all of the line

    @property
    def page(self) -> int:
        return max(super().page - self._help_lines, 0)

    def action_step(self, rows: int) -> None:
        if self.history_shown:
            super().action_step(rows)
        else:
            self._go_to(self.cursor + rows)

    def action_turn(self, up: bool) -> None:
        if knob := self._chosen:
            self._ask(knob, turned(knob, self._value(knob), up))

    def action_switch(self) -> None:
        if (knob := self._chosen) and knob.allowed.choices:
            self.action_turn(True)

    def action_edit(self) -> None:
        knob = self._chosen
        if knob is None:
            return
        if knob.allowed.choices:
            self.action_turn(True)
        else:
            # A list of weights is not selected: users mostly add to it.
            self._edit(knob, setting(self._value(knob)), selected=not knob.allowed.form)

    def action_history(self) -> None:
        """Switch between the knobs and their history."""
        self.show_history(not self.history_shown)

    def show_history(self, shown: bool) -> None:
        self.history_shown = shown
        self._field.close()
        self.scroll(0)
        self.redraw()

    def compose(self) -> ComposeResult:
        yield self._field

    def redraw(self) -> None:
        super().redraw()
        knob = self._chosen
        if self._field.is_open and knob is not None:
            # The field covers the value: that of a number at the right end.
            span = self._row(knob).span[2:-2]
            width = min(cell_len(self._field.value) + 1, len(span))
            x = span.start if isinstance(self._value(knob), str) else span.stop - width
            self._field.place(x + (2 if self.framed else 0), 1 + self.cursor - self.first, width)

    def on_resize(self) -> None:
        self.redraw()

    def on_key(self, event: events.Key) -> None:
        """Clear the refusal at any key. If the key is a character without effect, explain how to
        set the knob."""
        knob = self._chosen
        self._refusal = ""
        if knob and event.is_printable and event.key not in self.screen.active_bindings:
            self._refusal = way_to_set(knob, self.keys)
        self.redraw()

    def on_click(self, event: events.Click) -> None:
        x, row = event.x - (2 if self.framed else 0), event.y - 1 + self.first
        if self.history_shown or not 0 <= event.y - 1 < self.page or row >= len(self._cursor.items):
            return
        self._go_to(row)
        knob = self._cursor.items[row]
        span = self._row(knob).span
        if isinstance(self._value(knob), bool):
            if x in span:
                self.action_turn(True)
        elif x in span[:2]:
            self.action_turn(False)
        elif x in span[-2:]:
            self.action_turn(True)

    def title(self) -> str:
        policy, history, undo = (self.keys[action] for action in ("policy", "history", "undo"))
        if self.history_shown:
            return f"Knobs · history · {history} back · {undo} undo"
        return f"Knobs · {policy} policy · {history} history · {undo} undo"

    def footer(self) -> str:
        """The effect of the last change; if there was none, the keys that the title does not
        name."""
        if self.history_shown:
            return ""
        if self._field.is_open:
            return "enter sets · esc leaves it as it was"
        effect = self._history.effect
        less, more, edit = (self.keys[act] for act in ("turn(False)", "turn(True)", "edit"))
        return effect_line(effect) if effect else f"{less}/{more} turn · {edit} edits"

    def draw(self, width: int, height: int) -> list[Line]:
        self._entries = self._history.lines(self._inner_width) if self.history_shown else []
        return super().draw(width, height)

    def body(self, width: int, height: int) -> list[Line]:
        if not self._cursor.items:
            return [self.line(width).add(shorten("No model yet.", width), self.palette.muted)]
        cursor = self.cursor
        if self.history_shown:
            self.scroll(self.first)
            lines = self._entries[self.first : self.first + self.page]
        else:
            self.reveal(cursor)  # lines may have become fewer, or moved
            seen = self._cursor.items[self.first : self.first + self.page]
            lines = [self._row(k).line(self, current=k is self._cursor.item) for k in seen]
        help_lines = self._help_lines
        room = height - help_lines - len(lines)
        if not self.history_shown and len(table := self._history.table(width)) < room:
            lines += [self.line(width), *table]  # A tall panel has space for it below the knobs.
            room -= 1 + len(table)
        lines += [self.line(width) for _ in range(room)]
        if self._refusal:
            mark = self.glyphs.marks[Mark.FAILED]
            text, style = f"{mark} {self._refusal}", self.palette.bad
        else:
            text, style = help_text(self._cursor.items[cursor]), self.palette.muted
        wrapped = textwrap.wrap(text, width)
        if len(wrapped) > help_lines > 0:
            wrapped[help_lines - 1] = shorten(" ".join(wrapped[help_lines - 1 :]), width)
        return lines + [self.line(width).add(line, style) for line in wrapped[:help_lines]]

    @property
    def _inner_width(self) -> int:
        return self.size.width - (4 if self.framed else 0)

    @property
    def _help_lines(self) -> int:
        """The number of help lines at the bottom. The history only needs them for a refusal."""
        if self.history_shown and not self._refusal:
            return 0
        room = super().page
        return 2 if room >= 6 else 1 if room >= 3 else 0

    @property
    def _chosen(self) -> KnobState | None:
        """The knob that keys act on; None while the history is shown."""
        return None if self.history_shown else self._cursor.item

    def _value(self, knob: KnobState) -> KnobValue:
        """The requested value, from the last turn even if the engine has not reached it."""
        return self._asked[knob.name][-1] if knob.name in self._asked else knob.requested

    def _row(self, knob: KnobState) -> KnobRow:
        edited = self._field.is_open and knob.name == self.current
        typed = f"{self._field.value}_" if edited else None
        return KnobRow(knob, self._value(knob), typed, self._inner_width)

    def _go_to(self, row: int) -> None:
        self._cursor.go_to(row)
        self._field.close()
        self._refusal = ""  # it was about another knob
        self.redraw()

    def _edit(self, knob: KnobState, text: str, *, selected: bool = False) -> None:
        self._field.open(text, selected=selected, allowed=typeable(knob))

    def _typed(self) -> None:
        self._refusal = ""
        self.redraw()

    def _left(self, how: Leaving) -> None:
        knob, text = self._chosen, self._field.value
        if how == "enter" and knob is not None and (text or knob.allowed.form):
            self._ask(knob, parsed(knob, text))
            self._entered = knob.name, text
        self._refusal = ""
        self.redraw()

    def _say_what_fits(self) -> None:
        if knob := self._chosen:
            number = f"{knob.name} is a number {knob.allowed}"
            self._refusal = f"{number}; Enter sets it, Esc leaves it as it was"
            self.redraw()

    def _ask(self, knob: KnobState, value: KnobValue) -> None:
        self._entered = "", ""
        if value == self._value(knob):
            return
        self._asked.setdefault(knob.name, [knob.requested]).append(value)
        self.post_message(self.Turned(knob.name, value))
        self.redraw()
