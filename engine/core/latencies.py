"""Latencies: samples of request times, and the distributions over them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import NamedTuple

from engine.api.knobs import Knobs
from engine.api.lifecycle import FinishReason
from engine.api.snapshot import Goodput, LatencyView
from engine.api.telemetry import Samples
from engine.batch.plan import Request

WINDOW = 60.0


class Underway(NamedTuple):
    """Times of a request that has not ended, in seconds, and its number of output tokens."""

    arrival: float
    first_token: float | None
    last_token: float | None
    output_tokens: int

    @staticmethod
    def of(request: Request) -> Underway:
        timings, tokens = request.timings, len(request.output_token_ids)
        return Underway(timings.arrival, timings.first_token, timings.last_token, tokens)

    def is_late(self, now: float, knobs: Knobs) -> bool:
        """Whether it already misses a target: its TTFT even if the first token came now, or its
        TPOT so far, a lower bound that assumes the next token now.
        """
        first, last = self.first_token, self.last_token
        ttft = (now if first is None else first) - self.arrival
        if first is None or last is None or not self.output_tokens:
            return ttft * 1000 > knobs.ttft_target_ms
        so_far = (last - first) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0
        tpot = max(so_far, (now - first) / self.output_tokens)
        return ttft * 1000 > knobs.ttft_target_ms or tpot * 1000 > knobs.tpot_target_ms


@dataclass(slots=True)
class Latencies:
    """Samples of each latency, in seconds.

    Attributes:
        good: 1 for a request that met both targets, 0 for one that did not.
        decoding: for each sample of `tpot` the seconds from the first token to the last.
        prompts: lengths of the prompts that arrived, in tokens.
    """

    ttft: Samples = field(default_factory=Samples)
    tpot: Samples = field(default_factory=Samples)
    itl: Samples = field(default_factory=Samples)
    queue: Samples = field(default_factory=Samples)
    e2e: Samples = field(default_factory=Samples)
    good: Samples = field(default_factory=Samples)
    decoding: Samples = field(default_factory=Samples)
    prompts: Samples = field(default_factory=Samples)

    def copy(self) -> Latencies:
        """Copy the samples. A full set takes 0.1 ms."""
        return Latencies(*(copy(getattr(self, f.name)) for f in fields(self)))

    def arrived(self, request: Request, now: float) -> None:
        self.prompts.add(now, request.num_prompt_tokens)

    def scheduled(self, request: Request, now: float) -> None:
        """A request got its first slot."""
        self.queue.add(now, now - request.timings.arrival)

    def emitted(self, request: Request, now: float) -> None:
        """A request got an output token."""
        timings = request.timings
        if timings.first_token is None:
            timings.first_token = now
            self.ttft.add(now, now - timings.arrival)
        elif timings.last_token is not None:
            gap = now - timings.last_token
            request.token_gaps.append(gap)
            self.itl.add(now, gap)
        timings.last_token = now

    def repeated(self, requests: Sequence[Request], start: float, ends: Sequence[float]) -> None:
        """Each of these requests, whose last token came at `start`, got one at each of `ends`."""
        gaps = [end - begun for begun, end in pairwise([start, *ends])]
        for request in requests:
            request.token_gaps.extend(gaps)
            request.timings.last_token = ends[-1]
        count = len(requests)
        self.itl.extend(_each(ends, count), _each(gaps, count))

    def ended(self, request: Request, knobs: Knobs, now: float) -> None:
        """A request ended. If it was aborted or failed it has no comparable latency, and counts as
        not good if it was already late.
        """
        if request.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
            if Underway.of(request).is_late(now, knobs):
                self.good.add(now, False)
            return
        timings = request.timings
        self.e2e.add(now, now - timings.arrival)
        tpot = timings.tpot(len(request.output_token_ids))
        if tpot is not None and timings.first_token is not None:
            self.tpot.add(now, tpot)
            self.decoding.add(now, now - timings.first_token)
        self.good.add(now, _meets_targets(request, knobs))

    def view(self, now: float, running: Sequence[float]) -> LatencyView:
        """The distributions over the `WINDOW` seconds before `now`. They take some milliseconds.

        Args:
            now: the reader's time; while the engine is idle it is later than the last sample.
            running: TPOT so far of each running request, because a long reply may run for minutes
                and its speed counts before its end.
        """
        since = now - WINDOW
        return LatencyView(
            WINDOW,
            self.ttft.over(since),
            self.tpot.over(since, running),
            self.itl.over(since),
            self.queue.over(since),
            self.e2e.over(since),
            until=now,
            samples={"ttft": self.ttft, "tpot": self.tpot, "itl": self.itl, "queue": self.queue},
        )

    def goodput(self, now: float, knobs: Knobs, underway: Iterable[Underway]) -> Goodput:
        """The share of requests that met both targets, among those that ended in the `WINDOW`
        seconds before `now` and those that are already late.
        """
        ended = self.good.over(now - WINDOW)
        late = sum(request.is_late(now, knobs) for request in underway)
        good = round(ended.mean * ended.count) if ended.count else 0
        judged = ended.count + late
        return Goodput(
            WINDOW,
            knobs.ttft_target_ms / 1000,
            knobs.tpot_target_ms / 1000,
            good / judged if judged else math.nan,
            good / WINDOW,
            late,
        )


def _each(numbers: Sequence[float], times: int) -> list[float]:
    """Each number so many times."""
    return [number for number in numbers for _ in range(times)]


def _meets_targets(request: Request, knobs: Knobs) -> bool:
    """Whether both latencies met their targets. A request of one output token has no TPOT, so only
    its TTFT counts; for one without output, its end counts instead.
    """
    ttft = request.timings.ttft if request.max_output_tokens else request.timings.e2e
    tpot = request.timings.tpot(len(request.output_token_ids)) or 0.0
    return (
        ttft is not None
        and ttft * 1000 <= knobs.ttft_target_ms
        and tpot * 1000 <= knobs.tpot_target_ms
    )
