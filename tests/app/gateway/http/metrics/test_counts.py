"""Histograms beside those of prometheus-client."""

from __future__ import annotations

from array import array

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.gateway.http.metrics.counts import REQUEST, STEP_TOKENS, Histogram, token_bounds

NUMBERS = st.floats(0.0, 10_000.0) | st.sampled_from([float(bound) for bound in REQUEST])


@given(st.lists(st.lists(NUMBERS, max_size=20), max_size=4))
def test_it_counts_as_prometheus_client_does(batches: list[list[float]]) -> None:
    ours = Histogram(REQUEST)
    theirs = prometheus_client.Histogram("x", "", buckets=REQUEST, registry=None)
    for batch in batches:
        ours.add(array("d", batch))
        for number in batch:
            theirs.observe(number)
    (family,) = theirs.collect()
    buckets = [(s.labels["le"], s.value) for s in family.samples if s.name == "x_bucket"]
    assert ours.buckets == buckets
    (total,) = (s.value for s in family.samples if s.name == "x_sum")
    assert ours.sum == pytest.approx(total)


def test_bounds_of_token_counts() -> None:
    assert token_bounds(100) == (1, 2, 5, 10, 20, 50, 100)
    assert token_bounds(1024) == (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
    assert token_bounds(1) == (1,)
    assert dict(Histogram(STEP_TOKENS).buckets).keys() >= {"1.0", "16384.0", "+Inf"}
