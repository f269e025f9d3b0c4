"""Percentiles, rings and windows."""

from __future__ import annotations

import math
import threading
from copy import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.telemetry import (
    BlockChange,
    BlockEvents,
    Distribution,
    Recent,
    Ring,
    Samples,
    percentile,
)

FLOATS = st.floats(-1e9, 1e9, allow_nan=False)


class TestPercentiles:
    @given(st.lists(FLOATS, min_size=1, max_size=200), st.floats(0, 1))
    def test_against_numpy(self, samples: list[float], q: float) -> None:
        expected = float(np.quantile(samples, q))
        assert percentile(sorted(samples), q) == pytest.approx(expected, rel=1e-9, abs=1e-6)

    @given(st.lists(FLOATS, min_size=1, max_size=200))
    def test_a_distribution(self, samples: list[float]) -> None:
        distribution = Distribution.of(iter(samples))
        assert distribution.count == len(samples)
        assert distribution.mean == pytest.approx(np.mean(samples), rel=1e-9, abs=1e-6)
        assert distribution.p50 == pytest.approx(np.quantile(samples, 0.5), rel=1e-9, abs=1e-6)
        assert distribution.p99 == pytest.approx(np.quantile(samples, 0.99), rel=1e-9, abs=1e-6)
        assert min(samples) <= distribution.p50 <= distribution.p99 <= max(samples)

    def test_without_samples(self) -> None:
        distribution = Distribution.of([])
        assert distribution.count == 0
        assert all(map(math.isnan, (distribution.mean, distribution.p50, distribution.p99)))
        assert math.isnan(percentile([], 0.5))


class TestRing:
    @given(st.integers(1, 9), st.integers(0, 40), st.integers(-3, 45))
    def test_since(self, capacity: int, total: int, index: int) -> None:
        ring: Ring[int] = Ring(capacity)
        for i in range(total):
            ring.append(i)
        held = range(max(0, total - capacity), total)
        assert ring.since(index) == tuple(i for i in held if i >= index)
        assert ring.total == total

    def test_a_reader_that_follows_sees_every_item_once(self) -> None:
        """One thread appends, another follows; with room enough nothing is lost or doubled."""
        ring: Ring[int] = Ring(100_000)
        count = 50_000
        seen: list[int] = []

        def follow() -> None:
            while len(seen) < count:
                seen.extend(ring.since(len(seen)))

        reader = threading.Thread(target=follow)
        reader.start()
        for i in range(count):
            ring.append(i)
        reader.join(30)
        assert seen == list(range(count))


def test_the_recent_numbers_are_the_last_ones_and_take_no_more_room() -> None:
    recent = Recent(3)
    for number in range(20):
        recent.append(float(number))
        assert len(recent.numbers) < 6
        assert list(recent.last()) == [float(n) for n in range(max(0, number - 2), number + 1)]


class TestSamples:
    def test_only_the_window_counts(self) -> None:
        samples = Samples()
        for time in range(10):
            samples.add(float(time), time * 10.0)
        assert samples.over(7.0) == Distribution.of([70.0, 80.0, 90.0])
        assert samples.over(-1.0).count == 10
        assert samples.over(9.5).count == 0
        assert samples.over(8.0, iter([5.0])) == Distribution.of([5.0, 80.0, 90.0])

    def test_the_oldest_go_when_it_is_full(self) -> None:
        samples = Samples(capacity=4)
        for time in range(10):
            samples.add(float(time), float(time))
        assert samples.over(0.0) == Distribution.of([6.0, 7.0, 8.0, 9.0])

    def test_a_copy_stays_as_it_was(self) -> None:
        samples = Samples(capacity=4)
        for time in range(4):
            samples.add(float(time), float(time))
        copied = copy(samples)
        samples.add(4.0, 4.0)
        assert copied.over(0.0) == Distribution.of([0.0, 1.0, 2.0, 3.0])

    def test_a_reader_goes_on_where_it_was(self) -> None:
        samples = Samples(capacity=4)
        for number in range(30):
            held = list(map(float, range(max(0, number - 4), number)))
            for read in (samples, copy(samples), copy(copy(samples))):
                assert read.total == number
                for since in range(number + 2):
                    assert list(read.since(since)) == [value for value in held if value >= since]
            samples.add(0.0, float(number))


def test_events_by_kind() -> None:
    events = BlockEvents(
        ((BlockChange.GIVEN, 3, 1), (BlockChange.LEFT, 4, 1), (BlockChange.GIVEN, 5, 2))
    )
    assert events.blocks(BlockChange.GIVEN) == (3, 5)
    assert events.blocks(BlockChange.EVICTED) == ()
