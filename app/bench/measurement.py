"""Measurement: the times and token counts of one run of a workload, gathered while it runs."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Mapping

from app.bench.samples import Histogram, Series
from engine.api.lifecycle import FinishReason
from engine.api.telemetry import StepRecord
from engine.batch.plan import Stretch
from engine.core.core import EngineCore
from engine.driving.traffic import Outcome

MOST_ERRORS = 10
READ_EVERY = 256

TARGETS = ("ttft", "tpot", "e2el")


class StepTally:
    """Sums over step records. Rows, tokens, times and slots are those of steps that succeeded.

    Attributes:
        steps, failed: how many steps succeeded, and how many failed.
        seconds: the total time of the steps.
        rows, tokens: totals over the steps; a row is one sequence in one step.
        padding: tokens that a padded batch computes in vain: the padding of its prompts, and the
            bubbles of members that have ended.
        preemptions, swaps: how often a request was preempted, and how often it was swapped out.
        queried, hits: tokens looked up in the prefix cache, and tokens found there.

    Args:
        start: when the run began, by the engine's clock.
    """

    def __init__(self, start: float) -> None:
        self.steps = self.failed = 0
        self.seconds = 0.0
        self.rows = self.tokens = self.padding = 0
        self.preemptions = self.swaps = 0
        self.queried = self.hits = 0
        self._given = self._unused = 0.0
        self._start = start
        self._row_seconds, self._busy_seconds = Series(), Series()

    def add(self, record: StepRecord) -> None:
        self.preemptions += len(record.preempted)
        self.swaps += len(record.swapped)
        self.queried += record.prefix_queried_tokens
        self.hits += record.prefix_hit_tokens
        if record.error:
            self.failed += 1
            return
        rows, seconds = record.prefill_rows + record.decode_rows, record.duration
        self.steps += 1
        self.seconds += seconds
        self.rows += rows
        self.tokens += record.num_tokens
        self.padding += record.padding_tokens + record.bubble_tokens
        self._given += record.given_slots * seconds
        self._unused += record.unused_slots * seconds
        middle = (record.start + record.end) / 2 - self._start
        self._row_seconds.add(middle, rows * seconds)
        self._busy_seconds.add(middle, seconds)

    def repeated(self, stretch: Stretch) -> None:
        """Add the steps of a stretch, as their records would."""
        rows, steps = len(stretch.request_ids), len(stretch.ends)
        self.steps += steps
        self.rows += rows * steps
        self.tokens += rows * steps
        self.padding += stretch.bubbles * steps
        begun = stretch.start
        for end, given, unused in zip(
            stretch.ends, stretch.given_slots, stretch.unused_slots, strict=True
        ):
            seconds = end - begun
            self.seconds += seconds
            self._given += given * seconds
            self._unused += unused * seconds
            middle = (begun + end) / 2 - self._start
            self._row_seconds.add(middle, rows * seconds)
            self._busy_seconds.add(middle, seconds)
            begun = end

    @property
    def kv_waste(self) -> float:
        """The share of allocated token slots that were unused, averaged over the time of the
        steps."""
        return self._unused / self._given if self._given else 0.0

    def batch_over_time(self) -> tuple[list[float], list[float]]:
        """Moments in seconds after the start, and the mean number of sequences in a step at each.
        Moments without a step are left out."""
        pairs = zip(self._row_seconds.sums, self._busy_seconds.sums, strict=True)
        known = [
            (moment, rows / seconds)
            for moment, (rows, seconds) in zip(self._busy_seconds.middles, pairs, strict=True)
            if seconds
        ]
        return [moment for moment, _ in known], [rows for _, rows in known]


class Measurement:
    """A `Watcher` (`engine.driving.traffic`) of one run. Its memory grows with the number of
    requests (49 bytes each), not with the number of tokens.

    Attributes:
        offered: arrival times of all requests that ended, failed ones too, in seconds after the
            start.
        arrived, finished: when each request that succeeded arrived and ended, in seconds after the
            start.
        ttft, e2el: latencies of the requests that succeeded, in seconds.
        tpot: the same, of those with more than one output token, in seconds.
        itl: the gaps between two tokens of a request, in seconds, over all requests.
        failed: the number of failed requests.
        input_tokens, output_tokens: tokens of the requests that succeeded.
        met: for each request of `offered`, whether it succeeded and met every target. A request
            without a TPOT is judged by its other latencies.
        output: output tokens over time, in seconds after the start.
        peak_output: most output tokens in one whole second after the start, as vLLM counts them.
        errors: for each error message, the number of requests that failed with it; at most
            `MOST_ERRORS` messages.
        steps: sums over the steps of the run.

    Args:
        core: the core that runs; its step records are read until `close`.
        start: when the run began, by the core's clock.
        targets: upper limits in milliseconds for some of `TARGETS`.
        on_record: called with every step record.
        on_ended: called after every request.
    """

    def __init__(
        self,
        core: EngineCore,
        start: float,
        targets: Mapping[str, float],
        on_record: Callable[[StepRecord], None] | None = None,
        on_ended: Callable[[], None] | None = None,
    ) -> None:
        self.offered, self.met = array("d"), array("b")
        self.arrived, self.finished = array("d"), array("d")
        self.ttft, self.e2el, self.tpot = array("d"), array("d"), array("d")
        self.itl = Histogram()
        self.failed = 0
        self.input_tokens = self.output_tokens = 0
        self.output = Series()
        self.peak_output = 0
        self.errors: Counter[str] = Counter()
        self.steps = StepTally(start)
        self._records = core.records
        self._start = start
        self._targets = {name: limit / 1e3 for name, limit in targets.items()}
        self._on_record, self._on_ended = on_record, on_ended
        self._read = core.records.total
        self._now, self._tokens = start, 0
        self._second, self._in_second = 0, 0
        self._gap, self._gaps = math.nan, 0

    def emitted(self, now: float, gap: float | None) -> None:
        # The tokens of a step come at the same time and mostly after the same gap. So they are
        # counted here, and recorded when the time or the gap changes.
        if now != self._now:
            self._end_step()
            self._now = now
        self._tokens += 1
        if gap is None:
            return
        if gap != self._gap:
            self._end_gaps()
            self._gap = gap
        self._gaps += 1

    def repeated(self, stretch: Stretch) -> None:
        """Add the tokens and the steps of a stretch, as `emitted` and their records would."""
        self._end_step()
        self._read_records()
        rows, last = len(stretch.request_ids), stretch.start
        for end in stretch.ends:
            self._now, self._tokens = end, rows
            self._end_step()
            if end - last != self._gap:
                self._end_gaps()
                self._gap = end - last
            self._gaps += rows
            last = end
        self.steps.repeated(stretch)

    def ended(self, outcome: Outcome) -> None:
        self.offered.append(outcome.task.arrival)
        if outcome.reason in (FinishReason.ERROR, FinishReason.ABORT):
            self.failed += 1
            self.met.append(False)
            message = outcome.error.message if outcome.error else outcome.reason.value
            if message in self.errors or len(self.errors) < MOST_ERRORS:
                self.errors[message] += 1
        else:
            self._succeeded(outcome)
        if self._on_ended is not None:
            self._on_ended()

    def close(self) -> None:
        """Record the last steps. The measurement accepts nothing afterwards."""
        self._end_step()
        self._end_gaps()
        self._read_records()
        # Otherwise the measurement of each run would keep 16,384 records alive, up to 0.2 GB.
        del self._records

    @property
    def completed(self) -> int:
        return len(self.finished)

    @property
    def good(self) -> int:
        """How many requests succeeded and met every target."""
        return sum(self.met)

    @property
    def peak_concurrency(self) -> int:
        """The most concurrent requests, counting those that succeeded. A request that ends exactly
        when another arrives does not overlap it."""
        changes = sorted([(t, 1) for t in self.arrived] + [(t, -1) for t in self.finished])
        now = peak = 0
        for _, change in changes:
            now += change
            peak = max(peak, now)
        return peak

    def _succeeded(self, outcome: Outcome) -> None:
        timings = outcome.timings
        assert timings.ttft is not None
        assert timings.e2e is not None
        self.arrived.append(outcome.task.arrival)
        self.finished.append(outcome.finished)
        self.ttft.append(timings.ttft)
        self.e2el.append(timings.e2e)
        if timings.tpot is not None:
            self.tpot.append(timings.tpot)
        self.input_tokens += outcome.usage.prompt_tokens
        self.output_tokens += outcome.usage.completion_tokens
        reached = {"ttft": timings.ttft, "tpot": timings.tpot, "e2el": timings.e2e}
        self.met.append(
            all((reached[name] or 0.0) <= limit for name, limit in self._targets.items())
        )

    def _end_step(self) -> None:
        """Record the tokens that came at `_now`."""
        if self._tokens:
            time = self._now - self._start
            self.output.add(time, self._tokens)
            if int(time) != self._second:
                self._second, self._in_second = int(time), 0
            self._in_second += self._tokens
            self.peak_output = max(self.peak_output, self._in_second)
            self._tokens = 0
        if self._records.total - self._read >= READ_EVERY:
            self._read_records()

    def _end_gaps(self) -> None:
        if self._gaps:
            self.itl.add(self._gap, self._gaps)
            self._gaps = 0

    def _read_records(self) -> None:
        for record in self._records.since(self._read):
            self.steps.add(record)
            if self._on_record is not None:
                self._on_record(record)
        self._read = self._records.total
