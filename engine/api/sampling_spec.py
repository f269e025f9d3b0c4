"""SamplingSpec: a sampling parameter's meaning, range and names, stated on the line that declares
it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, TypeVar

# Whose requests state sampling parameters; `text` is /v1/completions.
Interface: TypeAlias = Literal["chat", "text", "responses", "messages", "mqtt"]
COMMON: tuple[Interface, ...] = ("chat", "text", "mqtt")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class NumberRange:
    """The closed interval of a number, which is an integer if the bounds are.

    Attributes:
        above: whether the interval excludes `low`.
        of_minus_one: whether -1 stands for the default.
    """

    low: float
    high: float
    above: bool = False
    of_minus_one: bool = False

    @property
    def is_integer(self) -> bool:
        return isinstance(self.high, int)

    def __contains__(self, value: object) -> bool:
        kinds = int if self.is_integer else (int, float)
        if not isinstance(value, kinds) or isinstance(value, bool):
            return False
        # NaN fails the comparison, which does not raise for integers beyond the range of floats.
        return self.low <= value <= self.high and not (self.above and value == self.low)

    def __str__(self) -> str:
        if self.is_integer:
            return f"an integer from {self.low} to {self.high}"
        bound = "above {:g} and at most {:g}" if self.above else "from {:g} to {:g}"
        return f"a number {bound.format(self.low, self.high)}"


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """A sampling parameter, for every front end.

    Attributes:
        meaning: how it affects a reply, in one line for users.
        allowed: its range, or the form of another value in words.
        names: the name of its field, by the interfaces that have it.
    """

    name: str
    default: object
    meaning: str
    allowed: NumberRange | str
    names: Mapping[Interface, str]


def parameter(
    default: _T,
    meaning: str,
    allowed: NumberRange | str,
    *,
    interfaces: tuple[Interface, ...] = COMMON,
    names: Mapping[Interface, str] = MappingProxyType({}),
    hashed: bool = True,
) -> _T:
    """Declare a sampling parameter: every field of a `SamplingSpec` but the name.

    Args:
        interfaces: those whose field has the parameter's own name.
        names: the field's name in other interfaces.
        hashed: whether the parameter counts in the hash of all of them.
    """
    metadata = {"meaning": meaning, "allowed": allowed, "interfaces": interfaces, "names": names}
    of: dict[str, Any] = {"default": default}
    if isinstance(default, dict):
        of = {"default_factory": dict}
    made: _T = field(**of, hash=None if hashed else False, metadata=metadata)
    return made


def specs_of(params: type[Any]) -> Mapping[str, SamplingSpec]:
    """The specs declared by a class of sampling parameters, by name.

    Raises:
        KeyError: a line has no meaning or no range.
    """
    return MappingProxyType(
        {
            f.name: SamplingSpec(
                f.name,
                {} if f.default is MISSING else f.default,
                f.metadata["meaning"],
                f.metadata["allowed"],
                MappingProxyType(
                    {**dict.fromkeys(f.metadata["interfaces"], f.name), **f.metadata["names"]}
                ),
            )
            for f in fields(params)
        }
    )
