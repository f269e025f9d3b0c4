"""Comparison: the engine's figures before the last change of knobs, and those since."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from engine.api.knobs import KnobChange
from engine.api.lifecycle import FinishReason
from engine.api.snapshot import Snapshot
from engine.api.telemetry import Distribution, Samples, StepRecord
from widgets.panels.effect import Effect, Figures

# The most seconds that are looked at on either side of the change.
SPAN = 30.0
# A knob is turned by several presses of a key: changes that follow one another within so many
# seconds count as one.
TURN_SECONDS = 3.0
SAMPLES = 4096


@dataclass(frozen=True, slots=True)
class _Sample:
    """A latency in seconds or the length of a prompt, with the start and the end of what it
    measures, in seconds of the engine's clock and as far as snapshots have them."""

    start: float
    end: float
    value: float


class Comparison:
    """Gathers latencies and arrivals from snapshots, and measures them and the steps around the
    last change.

    Step records know no request, so latencies come from the requests in the snapshots. A latency
    counts if it was over before the change or began after it. Times are those of the engine's
    clock. Once `SPAN` seconds have passed and all is known, the effect stays: what comes later is
    that of the load then (one change was shown as 222, 172 and 284 tok/s in two minutes).
    """

    def __init__(self) -> None:
        self._ttft: deque[_Sample] = deque(maxlen=SAMPLES)
        self._tpot: deque[_Sample] = deque(maxlen=SAMPLES)
        self._prompts: deque[_Sample] = deque(maxlen=SAMPLES)
        self._begun: dict[int, float] = {}
        self._last_arrival = 0
        self._ended: set[int] = set()
        self._looked = -math.inf
        self._change: KnobChange | None = None
        self._first: KnobChange | None = None
        self._before: Figures | None = None
        self._gaps = Samples()
        self._settled: Effect | None = None

    def look(self, snapshot: Snapshot, records: Iterable[StepRecord]) -> None:
        """Take in a new snapshot.

        Args:
            records: the last steps, the oldest first.
        """
        self._gather(snapshot)
        history = snapshot.knob_history
        if not history or history[-1] == self._change:
            return
        turn = last_turn(history)
        if self._first != turn[0]:
            place = history.index(turn[0])
            since = history[place - 1].time if place else -math.inf
            self._before = self._figures(records, since, turn[0].time)
            self._first = turn[0]
        self._change, self._settled = turn[-1], None

    def effect(self, now: float, records: Iterable[StepRecord]) -> Effect | None:
        """The effect of the last change; None if there was none, or if it was taken back at once.

        Args:
            now: in seconds of the engine's clock.
            records: the last steps, the oldest first.
        """
        if self._change is None or self._first is None or self._before is None:
            return None
        change = replace(self._change, before=self._first.before)
        if not change.changed:
            return None
        if self._settled is not None:
            return self._settled
        since = self._figures(records, self._change.time, now)
        effect = Effect(change, self._before, since)
        if now - self._change.time >= SPAN and effect.is_settled:
            self._settled = effect
        return effect

    def _gather(self, snapshot: Snapshot) -> None:
        before, self._looked = self._looked, snapshot.time
        self._gaps = snapshot.latency.samples.get("itl", self._gaps)
        newest = max((view.ordinal for view in snapshot.requests), default=0)
        for view in snapshot.requests:
            if view.ordinal > self._last_arrival:
                self._prompts.append(_Sample(before, snapshot.time, view.prompt_tokens))
            if view.ttft is not None and view.ordinal not in self._begun:
                self._begun[view.ordinal] = before
                self._ttft.append(_Sample(before - view.ttft, snapshot.time, view.ttft))
            ended = view.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
            if ended and view.tpot is not None and view.ordinal not in self._ended:
                self._ended.add(view.ordinal)
                start = self._begun[view.ordinal]
                self._tpot.append(_Sample(start, snapshot.time, view.tpot))
        self._last_arrival = max(self._last_arrival, newest)
        shown = {view.ordinal for view in snapshot.requests}
        self._begun = {n: time for n, time in self._begun.items() if n in shown}
        self._ended &= shown

    def _figures(self, records: Iterable[StepRecord], since: float, until: float) -> Figures:
        """The figures of the last `SPAN` seconds before `until`, without those that began before
        `since`."""
        first = max(since, until - SPAN)
        steps = [record for record in records if first <= record.start and record.end <= until]
        worked = sum(step.duration for step in steps)
        underway = sum((step.running + step.waiting) * step.duration for step in steps)
        rows = sum((step.prefill_rows + step.decode_rows) * step.duration for step in steps)
        given = sum(step.given_slots for step in steps)
        unused = sum(step.unused_slots for step in steps)
        return Figures(
            _over(sum(step.output_tokens for step in steps), _busy(steps)),
            _distribution(self._ttft, since, until),
            _distribution(self._tpot, since, until),
            _distribution(self._gaps_over(first, until), since, until),
            _over(rows, worked),
            _over(unused, given),
            _over(underway, worked),
            _distribution(self._prompts, since, until),
            until - first,
        )

    def _gaps_over(self, since: float, until: float) -> Iterator[_Sample]:
        """The gaps between tokens that ended then."""
        for end, gap in zip(*self._gaps.between(since, until), strict=True):
            yield _Sample(end - gap, end, gap)


def last_turn(history: Sequence[KnobChange]) -> Sequence[KnobChange]:
    """The last changes that followed one another closely. They are one turn of a knob, or of
    several."""
    first = len(history) - 1
    while first and history[first].time - history[first - 1].time <= TURN_SECONDS:
        first -= 1
    return history[first:]


def _busy(steps: Iterable[StepRecord]) -> float:
    """Seconds in which there was something to compute: those of the steps, and those between two
    steps if the first of them left work."""
    seconds, until, left = 0.0, -math.inf, False
    for step in steps:
        seconds += step.end - (until if left else max(step.start, until))
        until = step.end
        left = step.waiting > 0 or step.running > len(step.finished)
    return seconds


def _distribution(samples: Iterable[_Sample], since: float, until: float) -> Distribution:
    """The samples that began after `since` and were over in the last `SPAN` seconds before
    `until`."""
    first = max(since, until - SPAN)
    return Distribution.of(
        sample.value for sample in samples if sample.start >= since and first <= sample.end <= until
    )


def _over(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
