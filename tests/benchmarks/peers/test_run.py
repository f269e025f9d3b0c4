"""Figures of a run, from times that were made up."""

from __future__ import annotations

import math

import pytest

from benchmarks.peers.run import Measures, Run
from benchmarks.peers.serve import Served


def served(arrival: float, *times: float) -> Served:
    return Served(arrival, list(times), list(range(len(times))))


# Prompts are done at 1.0 and 2.0; from there on a step takes 0.5; the first ends at 4.0.
TWO = Run((served(0.0, 1.0, 2.0, 2.5, 3.0, 3.5, 4.0), served(0.0, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5)))


def test_rates_and_latencies() -> None:
    measures = Measures.of(TWO, 25e9)
    assert measures.rate == pytest.approx(12 / 4.5)
    assert measures.decode_rate == pytest.approx(8 / 2.0)
    assert measures.decode_step == pytest.approx(0.5)
    assert measures.ttft_p50 == pytest.approx(1.5)
    assert measures.ttft_p99 == pytest.approx(1.99)
    assert measures.tpot_p50 == pytest.approx((3.0 / 5 + 2.5 / 5) / 2)
    assert math.isnan(measures.peak_bytes)


def test_ttft_counts_from_the_arrival_and_decoding_needs_a_batch() -> None:
    measures = Measures.of(Run((served(0.0, 1.0, 2.0), served(3.0, 3.5, 5.0)), 10**6), 25e9)
    assert measures.ttft_p50 == pytest.approx(0.75)
    assert measures.rate == pytest.approx(4 / 5.0)
    assert math.isnan(measures.decode_rate)
    assert math.isnan(measures.decode_step)
    assert measures.peak_bytes == 10**6


def test_the_median_is_over_rounds() -> None:
    slow = Run(tuple(served(0.0, *(2 * t for t in request.times)) for request in TWO.requests))
    middle = Measures.median(
        [Measures.of(TWO, 25e9), Measures.of(slow, 35e9), Measures.of(TWO, 25e9)]
    )
    assert (middle.decode_step, middle.bandwidth) == (pytest.approx(0.5), 25e9)
    assert math.isnan(middle.peak_bytes)
