"""AlertRules: the alerts of the interface, and their thresholds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


@dataclass(frozen=True, slots=True)
class AlertKind:
    """One kind of alert.

    Attributes:
        title: the figure's name, for people.
        default: the threshold, unless another one is stated.
        unit: of that figure.
        meaning: when it is raised, for people.
    """

    name: str
    title: str
    default: float
    unit: str
    meaning: str


KINDS = (
    AlertKind(
        *("ttft", "Time to first token, p99", 100, "% of the target"),
        "its p99 over the last minute is above this",
    ),
    AlertKind(
        *("tpot", "Time per output token, p99", 100, "% of the target"),
        "its p99 over the last minute is above this",
    ),
    AlertKind("kv", "KV cache in use", 95, "%", "more than this share of it is used"),
    AlertKind("preemptions", "Preemptions", 0, "a minute", "more requests than this are preempted"),
    AlertKind("waiting", "Longest wait", 10, "s", "a request waits for longer than this"),
    AlertKind(
        "broker", "MQTT broker unreachable", 5, "s", "it is unreachable for longer than this"
    ),
)
_DEFAULTS = {kind.name: kind.default for kind in KINDS}


def _switch(value: object, name: str) -> object:
    """Convert a switch: `true` becomes the default threshold, `false` becomes None, and a number
    stays."""
    if isinstance(value, bool):
        return _DEFAULTS[name] if value else None
    return value


def _figure(name: str) -> object:
    return BeforeValidator(lambda value: _switch(value, name))


_Limit = Annotated[float, Field(ge=0, allow_inf_nan=False)] | None


class AlertRules(BaseModel):
    """The threshold of each alert; None if it is off.

    Attributes:
        bell: whether the terminal's bell rings with each.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    ttft: Annotated[_Limit, _figure("ttft")] = None
    tpot: Annotated[_Limit, _figure("tpot")] = None
    kv: Annotated[_Limit, _figure("kv")] = None
    preemptions: Annotated[_Limit, _figure("preemptions")] = None
    waiting: Annotated[_Limit, _figure("waiting")] = None
    broker: Annotated[_Limit, _figure("broker")] = None
    bell: bool = False

    def limits(self) -> Iterator[tuple[AlertKind, float]]:
        """The kinds that are on, each with its threshold."""
        for kind in KINDS:
            if (limit := getattr(self, kind.name)) is not None:
                yield kind, limit
