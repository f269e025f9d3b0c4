"""Measurement: the times and token counts of one run of a workload, gathered while it runs."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Mapping

from app.bench.histogram import Histogram
from app.bench.series import Series
from app.bench.steps import StepTally
from engine.api.lifecycle import FinishReason
from engine.api.telemetry import StepRecord
from engine.core.core import EngineCore
from engine.driving.traffic import Outcome

MOST_ERRORS = 10
READ_EVERY = 256

TARGETS = ("ttft", "tpot", "e2el")


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
