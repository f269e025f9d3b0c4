"""KnobLedger: the knobs of one engine, and the history of their changes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import fields

from engine.api.config import EngineConfig
from engine.api.knob_spec import KnobValue
from engine.api.knobs import KNOB_SPECS, KnobChange, Knobs, KnobState, change_knobs

HISTORY_LIMIT = 200


class KnobLedger:
    """Changes knobs atomically, records who did it and when, and takes changes back.

    Any thread may change knobs. The engine reads `knobs`, one immutable object, once a step.
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
        """Make all of `changes`, or none.

        Raises:
            InvalidConfigError: nothing was changed; the sentence names the knob and its range.
        """
        with self._lock:
            after = change_knobs(self.knobs, changes, self._config, self._policies)
            if after != self.knobs:
                self._record(KnobChange(time, step, who, self.knobs, after))
            return after

    def undo(self, who: str, time: float, step: int) -> Knobs:
        """Take back the last change that has not been undone; without one, do nothing."""
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
        """Every knob, requested beside effective. `effective` has the knobs whose value in force
        differs, or that are ignored: name -> (value in force, why)."""
        states = []
        for spec in KNOB_SPECS:
            requested = getattr(self.knobs, spec.name)
            value, note = effective.get(spec.name, (requested, ""))
            allowed = spec.range(self._config, self._policies)
            states.append(KnobState(spec, requested, value, note, allowed))
        return tuple(states)

    def _record(self, change: KnobChange) -> None:
        self._history.append(change)
        del self._history[:-HISTORY_LIMIT]
        self.knobs = change.after
