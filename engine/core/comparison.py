"""Comparison: the engine's figures before the last change of knobs, and those since."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace

from engine.api.effect import Effect, Figures
from engine.api.knobs import KnobChange
from engine.api.telemetry import Distribution, Ring, Samples, StepRecord
from engine.core.latencies import Latencies

# The most seconds to measure on either side of the change.
SPAN = 30.0
# Turning a knob takes several presses of a key: changes that follow one another within this many
# seconds count as one.
TURN_SECONDS = 3.0
# At each snapshot, only this many last steps are searched for those after the change: `SPAN`
# seconds on a device that takes 4 ms a step.
RECENT_STEPS = 8192


class Comparison:
    """Measures the steps and requests of one loaded model around the last change.

    The readers of snapshots compute it, from copies that the engine's thread made; all of them get
    the same figures. A latency counts if it was over before the change or began after it. Times are
    those of the engine's clock. Once `SPAN` seconds have passed and all figures are known, the
    effect is final: later figures would show the load of their own time (one change was shown as
    222, 172 and 284 tok/s in two minutes).
    """

    def __init__(self, records: Ring[StepRecord]) -> None:
        self._records = records
        self._turn: Sequence[KnobChange] = ()
        self._before: Figures | None = None
        self._settled: Effect | None = None
        self._lock = threading.Lock()

    def effect(
        self, history: Sequence[KnobChange], latencies: Latencies, now: float
    ) -> Effect | None:
        """The effect of the last change; None if there was none, or if it was undone at once.

        Args:
            history: the changes up to `now`, oldest first.
            now: in seconds of the engine's clock.
        """
        if not history:
            return None
        with self._lock:
            turn = last_turn(history)
            if self._before is None or self._turn[0] != turn[0]:
                place = len(history) - len(turn)
                since = history[place - 1].time if place else -math.inf
                self._before = self._figures(latencies, self._records.since(0), since, turn[0].time)
            if self._turn != turn:
                self._turn, self._settled = turn, None
            change = replace(turn[-1], before=turn[0].before)
            if not change.changed:
                return None
            if self._settled is not None:
                return self._settled
            recent = self._records.since(self._records.total - RECENT_STEPS)
            since_then = self._figures(latencies, recent, turn[-1].time, now)
            effect = Effect(change, self._before, since_then)
            if now - turn[-1].time >= SPAN and effect.is_settled:
                self._settled = effect
            return effect

    @staticmethod
    def _figures(
        latencies: Latencies, records: Iterable[StepRecord], since: float, until: float
    ) -> Figures:
        """The figures of the last `SPAN` seconds before `until`. Steps and latencies that began
        before `since` do not count."""
        first = max(since, until - SPAN)
        steps = [record for record in records if first <= record.start and record.end <= until]
        worked = sum(step.duration for step in steps)
        underway = sum((step.running + step.waiting) * step.duration for step in steps)
        rows = sum((step.prefill_rows + step.decode_rows) * step.duration for step in steps)
        given = sum(step.given_slots for step in steps)
        unused = sum(step.unused_slots for step in steps)
        _, prompts = latencies.prompts.between(first, until)
        return Figures(
            _over(sum(step.output_tokens for step in steps), _busy(steps)),
            _within(latencies.ttft, latencies.ttft, first, until, since),
            _within(latencies.tpot, latencies.decoding, first, until, since),
            _within(latencies.itl, latencies.itl, first, until, since),
            _over(rows, worked),
            _over(unused, given),
            _over(underway, worked),
            Distribution.of(prompts),
            until - first,
        )


def last_turn(history: Sequence[KnobChange]) -> Sequence[KnobChange]:
    """The last changes that closely followed one another: they count as one change, of one knob or
    of several."""
    first = len(history) - 1
    while first and history[first].time - history[first - 1].time <= TURN_SECONDS:
        first -= 1
    return history[first:]


def _within(
    samples: Samples, lengths: Samples, first: float, until: float, since: float
) -> Distribution:
    """The samples that ended from `first` to `until` and began after `since`.

    Args:
        lengths: for each sample the seconds from its beginning to its end.
    """
    ends, values = samples.between(first, until)
    _, seconds = lengths.between(first, until)
    return Distribution.of(
        value
        for end, value, length in zip(ends, values, seconds, strict=True)
        if end - length >= since
    )


def _busy(steps: Iterable[StepRecord]) -> float:
    """Seconds in which the engine had something to compute: the time of the steps, and the time
    between two steps if the first of them left work."""
    seconds, until, left = 0.0, -math.inf, False
    for step in steps:
        seconds += step.end - (until if left else max(step.start, until))
        until = step.end
        left = step.waiting > 0 or step.running > len(step.finished)
    return seconds


def _over(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
