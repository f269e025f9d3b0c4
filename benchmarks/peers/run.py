"""Run: one workload served once by one peer, and what follows from its tokens' times."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from benchmarks.peers.serve import Served
from engine.api.telemetry import percentile


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a peer on a workload.

    Attributes:
        requests: the times of each request and of its tokens.
        peak_bytes: the most resident memory during the run, in bytes; None where the system does
            not say.
    """

    requests: tuple[Served, ...]
    peak_bytes: int | None = None

    @classmethod
    def from_json(cls, run: dict[str, Any]) -> Run:
        return cls(tuple(Served(**request) for request in run["requests"]), run["peak_bytes"])

    @property
    def seconds(self) -> float:
        """Seconds from the first arrival to the last token."""
        first = min(request.arrival for request in self.requests)
        return max(request.times[-1] for request in self.requests) - first

    @property
    def decoding(self) -> tuple[float, float] | None:
        """From when to when every request had its first token and none its last; None if that was
        never so.

        It is None, too, where requests came one by one, for then each peer decodes other batches.
        """
        if any(request.arrival for request in self.requests):
            return None
        start = max(request.times[0] for request in self.requests)
        end = min(request.times[-1] for request in self.requests)
        return (start, end) if start < end else None


@dataclass(frozen=True, slots=True)
class Measures:
    """The figures of a run, in seconds, bytes, and output tokens a second. A figure that does not
    exist is NaN.

    Attributes:
        rate: over the whole run.
        decode_rate: while all requests decoded and no prompt was computed.
        decode_step: the median time from one token of a request to its next, in that period.
        tpot_p50, tpot_p99: over the requests' mean times from token to token.
        peak_bytes: the most resident memory.
        bandwidth: bytes a second that the machine read beside the run.
    """

    rate: float
    decode_rate: float
    decode_step: float
    ttft_p50: float
    ttft_p99: float
    tpot_p50: float
    tpot_p99: float
    peak_bytes: float
    bandwidth: float

    @classmethod
    def of(cls, run: Run, bandwidth: float) -> Measures:
        decode_rate = decode_step = math.nan
        if run.decoding is not None:
            start, end = run.decoding
            times = [[t for t in request.times if start <= t <= end] for request in run.requests]
            after = sum(t > start for request in times for t in request)
            gaps = [b - a for request in times for a, b in itertools.pairwise(request)]
            decode_rate = after / (end - start)
            decode_step = statistics.median(gaps) if gaps else math.nan
        ttfts = sorted(request.times[0] - request.arrival for request in run.requests)
        tpots = sorted(
            (request.times[-1] - request.times[0]) / (len(request.times) - 1)
            for request in run.requests
            if len(request.times) > 1
        )
        return cls(
            rate=sum(len(request.tokens) for request in run.requests) / run.seconds,
            decode_rate=decode_rate,
            decode_step=decode_step,
            ttft_p50=percentile(ttfts, 0.5),
            ttft_p99=percentile(ttfts, 0.99),
            tpot_p50=percentile(tpots, 0.5),
            tpot_p99=percentile(tpots, 0.99),
            peak_bytes=math.nan if run.peak_bytes is None else run.peak_bytes,
            bandwidth=bandwidth,
        )

    @classmethod
    def median(cls, rounds: Sequence[Measures]) -> Measures:
        """The median of each figure over rounds."""
        return cls(
            **{
                field.name: statistics.median(getattr(one, field.name) for one in rounds)
                for field in fields(cls)
            }
        )
