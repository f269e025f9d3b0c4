"""Knob values: how they are shown, how a turn changes them, and how typed text is parsed."""

from __future__ import annotations

from collections.abc import Mapping

from engine.api.knob_spec import KnobValue
from engine.api.knobs import KnobState
from widgets.figures import UNKNOWN, duration, setting
from widgets.line import shorten

# The value to which a doubled token count goes from 0, as a share of its range. If it went to 1, an
# engine whose prefill chunk had no cap would nearly stop.
_FIRST_SHARE = 1 / 32


def turned(knob: KnobState, value: KnobValue, up: bool) -> KnobValue:
    """`value` after one turn up or down, within its range. A text stays as it is."""
    allowed, step = knob.allowed, knob.spec.step
    if allowed.choices:
        place = allowed.choices.index(value) if value in allowed.choices else 0
        return allowed.choices[(place + (1 if up else -1)) % len(allowed.choices)]
    if isinstance(value, str):
        return value
    if step < 1:
        new: float = round(value + (step if up else -step), 9)
    elif up:
        new = value * step or _first(knob)
    else:
        new = value // step
    new = min(max(new, allowed.low), allowed.high)
    return int(new) if isinstance(value, int) else float(new)


def _first(knob: KnobState) -> float:
    """Where a doubled knob goes from 0: to its default if that is above, else to the minimum."""
    if knob.spec.unit == "tokens":
        return max(round(knob.allowed.high * _FIRST_SHARE), 1)
    return float(knob.spec.default) or 1


def typeable(knob: KnobState) -> str | None:
    """A regular expression for the allowed input of a knob; None allows anything."""
    return None if knob.allowed.form else r"([0-9.-][0-9.e-]*)?"


def parsed(knob: KnobState, text: str) -> KnobValue:
    """The typed value. Text that is not a number although it should be is returned unchanged, and
    the engine refuses it."""
    if not knob.allowed.form:
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
    return text


def is_ignored(knob: KnobState) -> bool:
    """Whether the policy or the order in force does not use the knob."""
    return knob.spec.acts != "always" and bool(knob.note) and knob.effective == knob.requested


def rank(knob: KnobState) -> int:
    """The panel's group of a knob: that of the knob that it acts under, or the ignored ones."""
    if is_ignored(knob):
        return 3
    under = knob.name if knob.spec.acts == "always" else knob.spec.acts
    return {"policy": 0, "order": 1}.get(under, 2)


def indented_name(knob: KnobState) -> str:
    """The knob's name, indented if it acts under a policy or an order."""
    return knob.name if knob.spec.acts == "always" or is_ignored(knob) else f"  {knob.name}"


def format_value(knob: KnobState, value: KnobValue) -> str:
    """A value as shown: times in the common format, with their unit. Typed text is the plain
    number."""
    seconds = {"s": 1.0, "ms": 1e-3}.get(knob.spec.unit)
    if seconds is None or isinstance(value, str):
        return setting(value) or UNKNOWN
    return duration(value * seconds) if value else "0"


def in_force(knob: KnobState) -> str:
    """The effective value, if it is not the requested one; else empty."""
    return f"  now {format_value(knob, knob.effective)}" if knob.effective != knob.requested else ""


def fitted_note(knob: KnobState, room: int) -> str:
    """The note on a knob, cut to so many cells. The note that a knob is ignored is shown completely
    or not at all, because position and colour show that too."""
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
        note = f" Now {format_value(knob, knob.effective)}: {knob.note}."
    elif knob.note:
        note = f" {knob.note[0].upper()}{knob.note[1:]}."
    return f"{knob.spec.meaning}: {knob.allowed}{unit}.{note}"
