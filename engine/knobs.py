"""Knobs: the live policy, everything that can change between two steps."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TypeAlias

from engine.config import EngineConfig
from engine.errors import InvalidConfigError

KnobValue: TypeAlias = bool | int | float | str

HISTORY_LIMIT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """Live policy. `KNOB_SPECS` says what each means and what it may be."""

    policy: str = "stall_free"
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    prefill_chunk: int = 0
    watermark: float = 0.01
    prefix_caching: bool = True
    queue_limit: int = 1000
    draining: bool = False
    paused: bool = False


@dataclass(frozen=True, slots=True)
class KnobSpec:
    """What a knob means, for every front end.

    Attributes:
        step: how far one turn goes; a float below 1 adds, 2 doubles and halves; 0 for switches.
    """

    name: str
    meaning: str
    unit: str = ""
    step: float = 0


KNOB_SPECS: tuple[KnobSpec, ...] = (
    KnobSpec("policy", "which batching policy composes each step"),
    KnobSpec("max_num_seqs", "most sequences running at once", "sequences", 2),
    KnobSpec("max_num_batched_tokens", "token budget of one step", "tokens", 2),
    KnobSpec("prefill_chunk", "most prompt tokens of one request a step; 0 is no cap", "tokens", 2),
    KnobSpec("watermark", "share of the pool kept free at admission", "of pool", 0.01),
    KnobSpec("prefix_caching", "reuse the blocks of equal prefixes"),
    KnobSpec("queue_limit", "waiting requests above which new ones are refused", "requests", 2),
    KnobSpec("draining", "admit nothing new; what was admitted ends"),
    KnobSpec("paused", "plan nothing; all stand still"),
)


@dataclass(frozen=True, slots=True)
class KnobRange:
    """What a knob may be: a choice of values, or a closed interval."""

    choices: tuple[KnobValue, ...] = ()
    low: float = 0
    high: float = 0

    def __str__(self) -> str:
        if self.choices:
            return "one of " + ", ".join(_show(c) for c in self.choices)
        return f"from {self.low} to {self.high}"


def knob_range(name: str, config: EngineConfig, policies: tuple[str, ...]) -> KnobRange:
    """What knob `name` may be within the envelope."""
    ranges = {
        "policy": KnobRange(choices=policies),
        "max_num_seqs": KnobRange(low=1, high=config.max_num_seqs),
        "max_num_batched_tokens": KnobRange(low=1, high=config.max_num_batched_tokens),
        "prefill_chunk": KnobRange(low=0, high=config.max_num_batched_tokens),
        "watermark": KnobRange(low=0.0, high=0.5),
        "queue_limit": KnobRange(low=1, high=1_000_000),
    }
    return ranges.get(name, KnobRange(choices=(True, False)))


def change_knobs(
    knobs: Knobs,
    changes: Mapping[str, object],
    config: EngineConfig,
    policies: tuple[str, ...],
) -> Knobs:
    """The knobs with `changes` made, all or none.

    Raises:
        InvalidConfigError: an unknown knob, a value of another type, or one outside the envelope.
    """
    names = {f.name for f in fields(Knobs)}
    checked: dict[str, KnobValue] = {}
    for name, value in changes.items():
        if name not in names:
            raise InvalidConfigError(
                f"{name} is no knob; allowed are {', '.join(spec.name for spec in KNOB_SPECS)}",
                name,
            )
        checked[name] = _check(name, value, knob_range(name, config, policies))
    changed = replace(knobs, **checked)  # type: ignore[arg-type]  # _check made the types right
    if changed.max_num_batched_tokens < changed.max_num_seqs:
        stated = "max_num_batched_tokens" in checked
        raise InvalidConfigError(
            f"max_num_batched_tokens is {changed.max_num_batched_tokens}; it must be at least "
            f"max_num_seqs ({changed.max_num_seqs}), one decode token for each sequence",
            "max_num_batched_tokens" if stated else "max_num_seqs",
        )
    return changed


def _check(name: str, value: object, allowed: KnobRange) -> KnobValue:
    default = getattr(Knobs(), name)
    fits: bool
    if isinstance(default, bool):
        fits = isinstance(value, bool)
    elif isinstance(default, str):
        fits = value in allowed.choices
    else:
        kinds = (int, float) if isinstance(default, float) else (int,)
        fits = (
            isinstance(value, kinds)
            and not isinstance(value, bool)
            and allowed.low <= value <= allowed.high
        )
    if not fits:
        raise InvalidConfigError(f"{name} is {_show(value)}; it must be {allowed}", name)
    assert isinstance(value, (bool, int, float, str))
    return float(value) if isinstance(default, float) else value


def _show(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


@dataclass(frozen=True, slots=True)
class KnobChange:
    """One entry of the history.

    Attributes:
        time: engine clock, seconds.
        step: the last step planned under `before`.
        undoes: whether it took back an earlier change.
    """

    time: float
    step: int
    who: str
    before: Knobs
    after: Knobs
    undoes: bool = False

    @property
    def changed(self) -> dict[str, tuple[KnobValue, KnobValue]]:
        """The knobs that differ, as name -> (before, after)."""
        return {
            f.name: (getattr(self.before, f.name), getattr(self.after, f.name))
            for f in fields(Knobs)
            if getattr(self.before, f.name) != getattr(self.after, f.name)
        }


@dataclass(frozen=True, slots=True)
class KnobState:
    """A knob as it stands.

    Attributes:
        requested: what was asked for.
        effective: what holds now.
        note: why the two differ, or that the current policy ignores this knob; else empty.
        allowed: what it may be.
    """

    spec: KnobSpec
    requested: KnobValue
    effective: KnobValue
    note: str
    allowed: KnobRange

    @property
    def name(self) -> str:
        return self.spec.name


class KnobLedger:
    """The knobs of one engine and how they came to be: changed atomically, recorded, undone.

    Any thread may change them; the engine reads `knobs`, one immutable object, once a step.
    """

    def __init__(self, knobs: Knobs, config: EngineConfig, policies: tuple[str, ...]) -> None:
        self._config = config
        self._policies = policies
        stated = {f.name: getattr(knobs, f.name) for f in fields(Knobs)}
        self.knobs = change_knobs(knobs, stated, config, policies)
        self._history: list[KnobChange] = []
        self._lock = threading.Lock()

    @property
    def history(self) -> tuple[KnobChange, ...]:
        """The last changes, oldest first; an undo is a change too."""
        return tuple(self._history)

    def change(self, changes: Mapping[str, object], who: str, time: float, step: int) -> Knobs:
        """Make `changes`, all or none.

        Raises:
            InvalidConfigError: nothing was changed; the sentence names the knob and its range.
        """
        with self._lock:
            after = change_knobs(self.knobs, changes, self._config, self._policies)
            if after != self.knobs:
                self._record(KnobChange(time, step, who, self.knobs, after))
            return after

    def undo(self, who: str, time: float, step: int) -> Knobs:
        """Go back to before the last change that has not been undone; without one, do nothing."""
        with self._lock:
            undone = 0
            for entry in reversed(self._history):
                if entry.undoes:
                    undone += 1
                elif undone:
                    undone -= 1
                else:
                    self._record(KnobChange(time, step, who, self.knobs, entry.before, undoes=True))
                    break
            return self.knobs

    def states(self, effective: Mapping[str, tuple[KnobValue, str]]) -> tuple[KnobState, ...]:
        """Every knob, requested beside effective. `effective` holds those that differ or are
        ignored: name -> (value in force, why)."""
        states = []
        for spec in KNOB_SPECS:
            requested = getattr(self.knobs, spec.name)
            value, note = effective.get(spec.name, (requested, ""))
            allowed = knob_range(spec.name, self._config, self._policies)
            states.append(KnobState(spec, requested, value, note, allowed))
        return tuple(states)

    def _record(self, change: KnobChange) -> None:
        self._history.append(change)
        del self._history[:-HISTORY_LIMIT]
        self.knobs = change.after
