"""Knob values: how a turn changes them, and how typed text is parsed."""

from __future__ import annotations

from engine.api.knob_spec import KnobValue
from engine.api.knobs import KnobState

# Where doubled token counts go from 0, as a share of their range. If they went to 1, an engine
# whose prefill chunk had no cap would nearly stop.
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
    """The typed value. Text that should be a number and is not stays as it is, and the engine
    refuses it."""
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
