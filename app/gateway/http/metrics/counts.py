"""Counts: counters of one model since the program began."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from app.gateway.http.metrics.histogram import (
    FIRST_TOKEN,
    REQUEST,
    STEP_TOKENS,
    TOKEN,
    Histogram,
    token_bounds,
)
from engine.api.lifecycle import FinishReason
from engine.api.telemetry import BlockChange, Ended, StepRecord

# The phases of a step, in order.
PHASES = ("plan", "prepare", "forward", "mask", "sample", "commit")


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

    def take(self, records: Sequence[StepRecord]) -> None:
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
        self._take_ended([ended for record in records for ended in record.finished])

    def _take_ended(self, ended: Sequence[Ended]) -> None:
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
