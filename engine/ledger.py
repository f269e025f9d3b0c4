"""KnobLedger: the knobs of one engine and how they came to be."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, fields

from engine.config import EngineConfig
from engine.knobs import KNOB_SPECS, KnobRange, Knobs, KnobSpec, KnobValue, change_knobs, knob_range

HISTORY_LIMIT = 200


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
    """Changes knobs atomically, records who did it and when, and takes changes back.

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
