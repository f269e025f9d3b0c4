from __future__ import annotations

import pytest

from widgets.figures import duration
from widgets.panels.latency_panel import ranges


def test_every_value_is_in_one_range() -> None:
    values = [0.004, 0.02, 0.021, 0.3]
    found = ranges(values, 9)
    assert [edge for edge, _ in found] == pytest.approx([0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5])
    assert [number for _, number in found] == [1, 0, 1, 1, 0, 0, 1]


def test_where_there_is_little_room_the_shortest_are_one_range() -> None:
    found = ranges([0.004, 0.02, 0.021, 0.3], 3)
    assert [number for _, number in found] == [3, 0, 1]
    assert ranges([], 3) == ranges([1.0], 0) == []


def test_a_time_is_in_the_range_that_ends_at_it() -> None:
    """Of gaps of 20 ms, most were counted as up to 50."""
    assert ranges([0.32 - 0.3, 0.02, 1.02 - 1.0], 3) == [(0.02, 3)]


def test_no_two_ranges_are_called_the_same() -> None:
    assert [duration(edge) for edge, _ in ranges([0.0, 1e-6, 4e-6, 3e-5], 9)] == ["0.1ms"]
