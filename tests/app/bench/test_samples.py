from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.bench.samples import MOST_BUCKETS, Histogram, Series


def test_amounts_are_summed_by_span_of_time() -> None:
    series = Series(width=0.5)
    for time, amount in ((0.0, 1), (0.49, 2), (0.5, 3), (1.7, 4)):
        series.add(time, amount)
    assert series.sums == [3, 3, 0, 4]
    assert series.middles == [0.25, 0.75, 1.25, 1.75]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
@example([0.85])
def test_a_long_run_has_wider_spans_and_loses_nothing(times: list[float]) -> None:
    series = Series(width=0.05)
    for time in times:
        series.add(time, 1.0)
    assert len(series.sums) <= MOST_BUCKETS
    assert sum(series.sums) == len(times)
    for bucket, amount in enumerate(series.sums):
        low, high = bucket * series.width, (bucket + 1) * series.width
        # On an edge, a division may round to the other side than a product: 0.85 / 0.05 is 17.
        edge = 1e-9 * high
        inside = sum(low + edge < time < high - edge for time in times)
        assert inside <= amount <= sum(low - edge <= time <= high + edge for time in times)


def test_a_late_amount_joins_pairs() -> None:
    series = Series(width=1.0)
    for second in range(MOST_BUCKETS):
        series.add(second, 1.0)
    series.add(MOST_BUCKETS, 1.0)
    assert series.width == 2.0
    assert series.sums == [2.0] * (MOST_BUCKETS // 2) + [1.0]
    assert series.middles[0] == pytest.approx(1.0)


def test_a_stretch_takes_its_share_of_the_spans_at_its_ends() -> None:
    series = Series(width=2.0)
    for time, amount in ((0.0, 10.0), (3.0, 20.0), (5.0, 40.0)):
        series.add(time, amount)
    assert series.between(0.0, 6.0) == pytest.approx(70.0)
    assert series.between(1.0, 5.0) == pytest.approx(5.0 + 20.0 + 20.0)
    assert series.between(2.5, 3.0) == pytest.approx(5.0)
    assert series.between(6.0, 9.0) == 0.0


@given(
    st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e5)), min_size=1, max_size=60),
    st.floats(0, 1),
)
def test_every_percentile_is_numpys_within_its_stated_error(samples: list[float], q: float) -> None:
    histogram = Histogram()
    for sample in samples:
        histogram.add(sample)
    assert histogram.percentile(q) == pytest.approx(float(np.quantile(samples, q)), rel=5.1e-4)
    assert histogram.mean == pytest.approx(float(np.mean(samples)))
    assert histogram.count == len(samples)


def test_equal_samples_are_added_at_once() -> None:
    one, other = Histogram(), Histogram()
    one.add(0.02, 3)
    one.add(0.0, 2)
    for sample in (0.02, 0.0, 0.02, 0.0, 0.02):
        other.add(sample)
    assert vars(one) == vars(other)


def test_memory_does_not_grow_with_the_samples() -> None:
    histogram = Histogram()
    for i in range(200_000):
        histogram.add(0.01 + i * 1e-7)  # 10 to 30 ms
    assert len(histogram._buckets) < 1_200  # log(3) / log(1.001) = 1,099


def test_without_samples_there_is_nothing() -> None:
    assert math.isnan(Histogram().mean)
    assert math.isnan(Histogram().percentile(0.5))
