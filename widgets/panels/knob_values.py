"""Knob values: how a turn changes them, and what may be typed."""

from __future__ import annotations

from engine.api.knob_spec import KnobValue
from engine.api.knobs import KnobState

# Where a knob that is doubled goes from 0, as a share of its range. If it went to 1, an engine
# whose prefill chunk had no cap would nearly stop.
_FIRST_SHARE = 1 / 32


def turned(knob: KnobState, value: KnobValue, up: bool) -> KnobValue:
    """`value` after one turn up or down, within what is allowed. A text stays as it is."""
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


def typeable(knob: KnobState) -> str | None:
    """A regular expression for what may be typed into a knob; None allows anything."""
    return None if knob.allowed.form else r"([0-9.-][0-9.e-]*)?"


def parsed(knob: KnobState, text: str) -> KnobValue:
    """The value that was typed. A text that is no number where one is wanted is kept as it is, and
    the engine refuses it."""
    if not knob.allowed.form:
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
    return text


def is_ignored(knob: KnobState) -> bool:
    """Whether the policy or the order in force makes no use of the knob."""
    return knob.spec.acts != "always" and bool(knob.note) and knob.effective == knob.requested
