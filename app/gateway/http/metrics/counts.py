"""Counts: counters of one model since the program began."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
from prometheus_client.utils import floatToGoString

from engine.api.lifecycle import FinishReason
from engine.api.telemetry import BlockChange, Ended, StepRecord

# The phases of a step, in order.
PHASES = ("plan", "prepare", "forward", "mask", "sample", "commit")
# From a millisecond to 43 minutes, for the first token after a very long queue.
FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


def token_bounds(most: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20 and so on, up to `most`."""

    def series() -> Iterator[int]:
        unit = 1
        while unit <= most:
            yield from (unit, 2 * unit, 5 * unit)
            unit *= 10

    return tuple(bound for bound in series() if bound <= most)


class Histogram:
    """Counts numbers by the smallest bound at or above each.

    prometheus-client's own adds one number at a time, behind a lock; here a second's numbers are
    added at once.

    Args:
        bounds: in ascending order.

    Attributes:
        sum: of all numbers.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = np.array(bounds, np.float64)
        named = map(floatToGoString, bounds)  # type: ignore[no-untyped-call,unused-ignore]
        self._names: list[str] = [*named, "+Inf"]
        self._counts = np.zeros(len(self._names), np.int64)
        self.sum = 0.0

    def add(self, numbers: Sequence[float]) -> None:
        if len(numbers):
            values = np.asarray(numbers, np.float64)
            places = np.searchsorted(self._bounds, values)
            self._counts += np.bincount(places, minlength=len(self._counts))
            self.sum += float(values.sum())

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """Each bound, and how many numbers are at or below it."""
        return list(zip(self._names, accumulate(self._counts.tolist()), strict=True))


class Counts:
    """Only grows, however often the model is unloaded and loaded again.

    Args:
        max_model_len: of the first load. It is the last bound of token counts, and stays: a
            Prometheus series cannot change its buckets.

    Attributes:
        totals: by the name of the counter.
        ended: requests by finish reason.
        phases: seconds of steps, by `PHASES`.
        histograms: by vLLM's names. Those of requests cover the requests that ended by themselves.
    """

    def __init__(self, max_model_len: int) -> None:
        self.totals: Counter[str] = Counter()
        self.ended: Counter[FinishReason] = Counter()
        self.phases = dict.fromkeys(PHASES, 0.0)
        tokens = token_bounds(max_model_len)
        self.histograms = {
            "time_to_first_token_seconds": Histogram(FIRST_TOKEN),
            "inter_token_latency_seconds": Histogram(TOKEN),
            "request_time_per_output_token_seconds": Histogram(TOKEN),
            "e2e_request_latency_seconds": Histogram(REQUEST),
            "request_queue_time_seconds": Histogram(REQUEST),
            "request_inference_time_seconds": Histogram(REQUEST),
            "request_prefill_time_seconds": Histogram(REQUEST),
            "request_decode_time_seconds": Histogram(REQUEST),
            "request_prompt_tokens": Histogram(tokens),
            "request_generation_tokens": Histogram(tokens),
            "request_prefill_kv_computed_tokens": Histogram(tokens),
            "iteration_tokens_total": Histogram(STEP_TOKENS),
        }
        # vLLM's maximum over a request's replies; each reply is a request here.
        self.histograms["request_max_num_generation_tokens"] = self.histograms[
            "request_generation_tokens"
        ]

    def count_steps(self, records: Sequence[StepRecord]) -> None:
        """Count steps that were not counted before."""
        totals, phases = self.totals, self.phases
        for record in records:
            totals["prompt_tokens"] += record.prefix_queried_tokens
            totals["generation_tokens"] += record.output_tokens
            totals["prefix_cache_queries"] += record.prefix_queried_tokens
            totals["prefix_cache_hits"] += record.prefix_hit_tokens
            totals["prompt_tokens_cached"] += record.prefix_hit_tokens
            totals["num_preemptions"] += len(record.preempted)
            totals["steps"] += 1
            totals["failed_steps"] += bool(record.error)
            totals["prefill_tokens"] += record.prefill_tokens
            totals["decode_tokens"] += record.decode_tokens
            totals["padding_tokens"] += record.padding_tokens
            totals["bubble_tokens"] += record.bubble_tokens
            totals["step_flops"] += record.cost.flops
            totals["step_bytes"] += record.cost.bytes
            totals["swaps"] += len(record.swapped)
            totals["swapped_out_blocks"] += record.swapped_out_blocks
            totals["swapped_in_blocks"] += record.swapped_in_blocks
            totals["evictions"] += len(record.blocks.blocks(BlockChange.EVICTED))
            times = record.times
            spent = (
                record.plan,
                times.prepare,
                times.forward,
                times.mask,
                times.sample,
                record.commit,
            )
            for phase, seconds in zip(PHASES, spent, strict=True):
                phases[phase] += seconds
        # A step that failed has computed nothing.
        sizes = [record.num_tokens for record in records if not record.error]
        self.histograms["iteration_tokens_total"].add(sizes)
        self._count_ended([ended for record in records for ended in record.finished])

    def _count_ended(self, ended: Sequence[Ended]) -> None:
        self.ended.update(one.reason for one in ended)
        whole = [one for one in ended if one.reason in (FinishReason.STOP, FinishReason.LENGTH)]
        times = [one.timings for one in whole]
        inference = [
            one.prefill + one.decode
            for one in times
            if one.prefill is not None and one.decode is not None
        ]
        found: dict[str, Sequence[float | None]] = {
            "request_time_per_output_token_seconds": [one.tpot for one in times],
            "e2e_request_latency_seconds": [one.e2e for one in times],
            "request_queue_time_seconds": [one.queue for one in times],
            "request_inference_time_seconds": inference,
            "request_prefill_time_seconds": [one.prefill for one in times],
            "request_decode_time_seconds": [one.decode for one in times],
            "request_prompt_tokens": [one.prompt_tokens for one in whole],
            "request_generation_tokens": [one.output_tokens for one in whole],
            "request_prefill_kv_computed_tokens": [
                one.prompt_tokens - one.cached_tokens for one in whole
            ],
        }
        for name, numbers in found.items():
            self.histograms[name].add([number for number in numbers if number is not None])
