"""Knob words: what the panel says of a knob, and where it puts it."""

from __future__ import annotations

from collections.abc import Mapping

from engine.api.knob_spec import KnobValue
from engine.api.knobs import KnobState
from widgets.figures import UNKNOWN, duration, setting
from widgets.line import shorten
from widgets.panels.knob_values import is_ignored


def rank(knob: KnobState) -> int:
    """Which group of the panel a knob stands in: that of what it acts under, or the ignored
    ones."""
    if is_ignored(knob):
        return 3
    under = knob.name if knob.spec.acts == "always" else knob.spec.acts
    return {"policy": 0, "order": 1}.get(under, 2)


def shown_name(knob: KnobState) -> str:
    """The knob's name, indented if it acts under a policy or an order."""
    return knob.name if knob.spec.acts == "always" or is_ignored(knob) else f"  {knob.name}"


def shown_value(knob: KnobState, value: KnobValue) -> str:
    """A value as it is shown: a time as all times are, with its unit. What is typed is the plain
    number."""
    seconds = {"s": 1.0, "ms": 1e-3}.get(knob.spec.unit)
    if seconds is None or isinstance(value, str):
        return setting(value) or UNKNOWN
    return duration(value * seconds) if value else "0"


def in_force(knob: KnobState) -> str:
    """The value in force, if it is not the one that is asked for; otherwise empty."""
    return f"  now {shown_value(knob, knob.effective)}" if knob.effective != knob.requested else ""


def note_in(knob: KnobState, room: int) -> str:
    """What there is to note on it, in so many cells. That it is ignored, which its place and its
    colour say too, is told in whole words or not at all."""
    if is_ignored(knob):
        return next((text for text in (knob.note, "ignored") if len(text) <= room), "")
    return shorten(knob.note, room)


def way_to_set(knob: KnobState, keys: Mapping[str, str]) -> str:
    """What values a knob may have, and the keys that set it, which are those of the panel."""
    edits = [] if knob.allowed.choices else [f"{keys['edit']} edits it"]
    turns = [] if knob.allowed.form else [f"{keys['turn(False)']} and {keys['turn(True)']} turn it"]
    return f"{knob.name} is {knob.allowed}; {', '.join(edits + turns)}"


def help_text(knob: KnobState) -> str:
    """What a knob means, what values it may have, and what there is to note on it."""
    unit = f" {knob.spec.unit}" if knob.spec.unit else ""
    note = ""
    if knob.effective != knob.requested:
        note = f" Now {shown_value(knob, knob.effective)}: {knob.note}."
    elif knob.note:
        note = f" {knob.note[0].upper()}{knob.note[1:]}."
    return f"{knob.spec.meaning}: {knob.allowed}{unit}.{note}"
