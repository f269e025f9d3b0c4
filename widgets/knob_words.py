"""Knob words: what the panel says of a knob, and where it stands."""

from __future__ import annotations

from engine.api.knobs import KnobState
from widgets.figures import setting
from widgets.knob_values import is_ignored


def rank(knob: KnobState) -> int:
    """Where a knob stands: with what it acts under, or with what is ignored."""
    if is_ignored(knob):
        return 3
    under = knob.name if knob.spec.acts == "always" else knob.spec.acts
    return {"policy": 0, "order": 1}.get(under, 2)


def shown_name(knob: KnobState) -> str:
    """The name, set in below the policy or the order that it acts under."""
    return knob.name if knob.spec.acts == "always" or is_ignored(knob) else f"  {knob.name}"


def in_force(knob: KnobState) -> str:
    """What holds now, where that is not what is asked for."""
    return f"  now {setting(knob.effective)}" if knob.effective != knob.requested else ""


def way_to_set(knob: KnobState) -> str:
    """What a knob may be, and the keys that set it."""
    keys = "Enter edits it" if knob.allowed.form else "Enter edits it, left and right turn it"
    if knob.allowed.choices:
        keys = "left and right turn it"
    return f"{knob.name} is {knob.allowed}; {keys}"


def help_text(knob: KnobState) -> str:
    """What a knob means, what it may be, and what is the matter with it."""
    unit = f" {knob.spec.unit}" if knob.spec.unit else ""
    note = ""
    if knob.effective != knob.requested:
        note = f" Now {setting(knob.effective)}: {knob.note}."
    elif knob.note:
        note = f" {knob.note[0].upper()}{knob.note[1:]}."
    return f"{knob.spec.meaning}: {knob.allowed}{unit}.{note}"
