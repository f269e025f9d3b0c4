from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.bench.samples import Histogram


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
