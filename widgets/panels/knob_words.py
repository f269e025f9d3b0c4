"""Knob words: the panel's texts about a knob, and its position."""

from __future__ import annotations

from collections.abc import Mapping

from engine.api.knob_spec import KnobValue
from engine.api.knobs import KnobState
from widgets.figures import UNKNOWN, duration, setting
from widgets.line import shorten
from widgets.panels.knob_values import is_ignored


def rank(knob: KnobState) -> int:
    """The panel's group of a knob: that of the knob that it acts under, or the ignored ones."""
    if is_ignored(knob):
        return 3
    under = knob.name if knob.spec.acts == "always" else knob.spec.acts
    return {"policy": 0, "order": 1}.get(under, 2)


def shown_name(knob: KnobState) -> str:
    """The knob's name, indented if it acts under a policy or an order."""
    return knob.name if knob.spec.acts == "always" or is_ignored(knob) else f"  {knob.name}"


def shown_value(knob: KnobState, value: KnobValue) -> str:
    """A value as shown: times in the common format, with their unit. Typed text is the plain
    number."""
    seconds = {"s": 1.0, "ms": 1e-3}.get(knob.spec.unit)
    if seconds is None or isinstance(value, str):
        return setting(value) or UNKNOWN
    return duration(value * seconds) if value else "0"


def in_force(knob: KnobState) -> str:
    """The effective value, if it is not the requested one; else empty."""
    return f"  now {shown_value(knob, knob.effective)}" if knob.effective != knob.requested else ""


def note_in(knob: KnobState, room: int) -> str:
    """The note on a knob, in so many cells. That it is ignored, which its position and colour show
    too, is written in whole words or not at all."""
    if is_ignored(knob):
        return next((text for text in (knob.note, "ignored") if len(text) <= room), "")
    return shorten(knob.note, room)


def way_to_set(knob: KnobState, keys: Mapping[str, str]) -> str:
    """The allowed values of a knob, and the panel's keys that set it."""
    edits = [] if knob.allowed.choices else [f"{keys['edit']} edits it"]
    turns = [] if knob.allowed.form else [f"{keys['turn(False)']} and {keys['turn(True)']} turn it"]
    return f"{knob.name} is {knob.allowed}; {', '.join(edits + turns)}"


def help_text(knob: KnobState) -> str:
    """A knob's meaning, its allowed values, and its note."""
    unit = f" {knob.spec.unit}" if knob.spec.unit else ""
    note = ""
    if knob.effective != knob.requested:
        note = f" Now {shown_value(knob, knob.effective)}: {knob.note}."
    elif knob.note:
        note = f" {knob.note[0].upper()}{knob.note[1:]}."
    return f"{knob.spec.meaning}: {knob.allowed}{unit}.{note}"
