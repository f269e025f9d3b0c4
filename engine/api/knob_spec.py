"""KnobSpec: a knob's meaning and range, stated on the line that declares it."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias, TypeVar

from engine.api.config import EngineConfig

KnobValue: TypeAlias = bool | int | float | str


@dataclass(frozen=True, slots=True)
class KnobRange:
    """A knob's range: a choice of values, text of some form, or else a closed interval.

    Attributes:
        form: describes the form of a text.
    """

    choices: tuple[KnobValue, ...] = ()
    low: float = 0
    high: float = 0
    form: str = ""

    def __str__(self) -> str:
        if self.choices:
            return "one of " + ", ".join(format_value(c) for c in self.choices)
        return self.form or f"from {_number(self.low)} to {_number(self.high)}"


def _number(value: float) -> str:
    """Format a bound for people: 86400.0 becomes 86,400."""
    return f"{value:,}".removesuffix(".0")


# Computes a range from the envelope and the names of the policies.
RangeRule: TypeAlias = Callable[[EngineConfig, tuple[str, ...]], KnobRange]
Scope: TypeAlias = Literal["always", "policy", "order"]
_T = TypeVar("_T", bound=KnobValue)

SWITCH = KnobRange(choices=(True, False))


def knob(
    default: _T,
    meaning: str,
    allowed: KnobRange | RangeRule,
    unit: str = "",
    step: float = 0,
    acts: Scope = "always",
) -> _T:
    """Declare a knob: every field of a `KnobSpec` but the name."""
    metadata = {
        "default": default,
        "meaning": meaning,
        "allowed": allowed,
        "unit": unit,
        "step": step,
        "acts": acts,
    }
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class KnobSpec:
    """Meaning and range of a knob, for every front end.

    Attributes:
        allowed: its range, or a function that computes it from the envelope and the policies.
        step: size of one turn. A float below 1 is added or subtracted; 2 doubles and halves;
            switches have 0.
        acts: `always`, or only under a policy or an order that names the knob in its `uses`.
    """

    name: str
    default: KnobValue
    meaning: str
    allowed: KnobRange | RangeRule
    unit: str = ""
    step: float = 0
    acts: Scope = "always"

    def range(self, config: EngineConfig, policies: tuple[str, ...]) -> KnobRange:
        """The knob's range within the envelope."""
        if isinstance(self.allowed, KnobRange):
            return self.allowed
        return self.allowed(config, policies)


def specs_of(knobs: type[Any]) -> tuple[KnobSpec, ...]:
    """The specs declared by a class of knobs.

    Raises:
        TypeError: a line has no meaning or no range.
    """
    return tuple(KnobSpec(f.name, **f.metadata) for f in fields(knobs))


def format_value(value: object) -> str:
    """Format a value for a refusal: shortened, and a switch as in JSON."""
    return str(value).lower() if isinstance(value, bool) else reprlib.repr(value)
