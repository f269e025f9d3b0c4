"""KnobLedger: the knobs of one engine, and the history of their changes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType

from engine.api.config import EngineConfig
from engine.api.knob_spec import KnobValue
from engine.api.knobs import KNOB_SPECS, KnobChange, Knobs, KnobState, change_knobs

HISTORY_LIMIT = 200
NO_NOTES: Mapping[str, str] = MappingProxyType({})


class KnobLedger:
    """Changes knobs atomically, records who changed them and when, and undoes changes.

    Any thread may change knobs. The engine reads `knobs`, one immutable object, once a step.

    Args:
        notes: by knob name, why it starts at its value; shown until the knob is changed.
    """

    def __init__(
        self,
        knobs: Knobs,
        config: EngineConfig,
        policies: tuple[str, ...],
        notes: Mapping[str, str] = NO_NOTES,
    ) -> None:
        self._config = config
        self._policies = policies
        stated = {f.name: getattr(knobs, f.name) for f in fields(Knobs)}
        self.knobs = change_knobs(knobs, stated, config, policies)
        self._start, self._notes = self.knobs, notes
        self._history: list[KnobChange] = []
        self._standing: list[KnobChange] = []  # those not undone
        self._lock = threading.Lock()

    @property
    def history(self) -> tuple[KnobChange, ...]:
        """The last changes, oldest first; an undo is a change too."""
        return tuple(self._history)

    def change(self, changes: Mapping[str, object], who: str, time: float, step: int) -> Knobs:
        """Apply all of `changes`, or none.

        Raises:
            InvalidConfigError: nothing was changed; the sentence names the knob and its range.
        """
        with self._lock:
            after = change_knobs(self.knobs, changes, self._config, self._policies)
            if after != self.knobs:
                change = KnobChange(time, step, who, self.knobs, after)
                self._record(change)
                self._standing.append(change)
                del self._standing[:-HISTORY_LIMIT]
            return after

    def undo(self, who: str, time: float, step: int, within: float = 0.0) -> KnobChange | None:
        """Undo the last change that has not been undone.

        Args:
            within: also undo earlier changes of the same knobs by the same person, each within so
                many seconds of the next, because several presses of a key are one change.

        Returns:
            the change that this made; None if there was nothing to undo.
        """
        with self._lock:
            if not self._standing:
                return None
            first = self._standing.pop()
            while self._standing and self._is_turn(self._standing[-1], first, within):
                first = self._standing.pop()
            change = KnobChange(time, step, who, self.knobs, first.before, undoes=True)
            self._record(change)
            return change

    def states(self, effective: Mapping[str, tuple[KnobValue, str]]) -> tuple[KnobState, ...]:
        """All knobs, requested and effective. `effective` has those that are ignored or whose value
        in force differs: name -> (value in force, why).
        """
        states = []
        for spec in KNOB_SPECS:
            requested = getattr(self.knobs, spec.name)
            is_start = requested == getattr(self._start, spec.name)
            start = self._notes.get(spec.name, "") if is_start else ""
            value, note = effective.get(spec.name, (requested, start))
            allowed = spec.range(self._config, self._policies)
            states.append(KnobState(spec, requested, value, note, allowed))
        return tuple(states)

    def _record(self, change: KnobChange) -> None:
        self._history.append(change)
        del self._history[:-HISTORY_LIMIT]
        self.knobs = change.after

    def _is_turn(self, before: KnobChange, after: KnobChange, within: float) -> bool:
        """Whether two successive changes belong to one turn of a knob, and the second does not take
        it back to its start.
        """
        return (
            within > 0
            and before.who == after.who
            and before.changed.keys() == after.changed.keys()
            and before.before != self.knobs
            and after.time - before.time <= within
        )
