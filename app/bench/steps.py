"""StepTally: sums over the steps of a run."""

from __future__ import annotations

from app.bench.series import Series
from engine.api.telemetry import StepRecord


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
