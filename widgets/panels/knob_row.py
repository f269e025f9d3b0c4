"""KnobRow: the line of a knob on the panel."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len
from rich.style import Style

from engine.api.knob_spec import KnobValue
from engine.api.knobs import KnobState
from widgets.line import Line
from widgets.line_view import LineView
from widgets.panels.knob_values import (
    fitted_note,
    format_value,
    in_force,
    indented_name,
    is_ignored,
)

_NAME_WIDTH = 22
_VALUE_WIDTH = 12


@dataclass(frozen=True, slots=True)
class KnobRow:
    """A knob with the requested value, and the effective one if that differs.

    Attributes:
        value: the requested value.
        typed: the typed text so far, with its cursor; None unless the value is being typed.
        width: the cells of the line.
    """

    knob: KnobState
    value: KnobValue
    typed: str | None
    width: int

    @property
    def span(self) -> range:
        """The cells of the value.

        A name or a text may use all cells that the knob's name leaves. Space for a differing
        effective value is always reserved, even if that truncates the knob's name.
        """
        width, length = self.width - len(in_force(self.knob)), _VALUE_WIDTH
        if isinstance(self.value, str):
            room = width - 3 - len(indented_name(self.knob))
            length = max(min(cell_len(self._text) + 4, room), length)
            if room < length:  # The name needs the blanks after the value.
                length = min(cell_len(self._text) + 4, length)
        length = max(min(length, width - 3), 5)
        start = max(min(2 + _NAME_WIDTH + 1, width - length), 3)
        return range(start, start + length)

    def line(self, view: LineView, *, current: bool) -> Line:
        """The line drawn by `view`; `current` says whether the cursor is on it."""
        palette, glyphs, knob = view.palette, view.glyphs, self.knob
        over = palette.cursor if current and view.has_focus_within else Style.null()
        text, strong = palette.text + over, palette.strong + over
        muted = text if over else palette.muted
        if is_ignored(knob):
            text = strong = muted
        line, span = view.line(self.width), self.span
        line.cell(glyphs.cursor if current else "", 2, palette.strong + over)
        line.cell(indented_name(knob), span.start - 3, text).add(" ", text)
        if isinstance(self.value, bool):
            line.cell("[x]" if self.value else "[ ]", len(span), strong)
        else:
            room, shown = len(span) - 4, self._text
            if self.typed is not None:
                shown = shown[-room:]  # the end, where the cursor is
            turns = not knob.allowed.form
            line.add(f"{glyphs.less if turns else ' '} ", muted)
            line.cell(shown, room, strong, "left" if isinstance(self.value, str) else "right")
            line.add(f" {glyphs.more if turns else ' '}", muted)
        line.add(in_force(knob), palette.warn + over)
        if note := fitted_note(knob, line.room - 2):
            line.add("  ", text).add(note, muted)
        return line.pad(text)

    @property
    def _text(self) -> str:
        """The shown value."""
        return format_value(self.knob, self.value) if self.typed is None else self.typed
