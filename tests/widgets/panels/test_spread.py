from __future__ import annotations

import pytest

from widgets.panels.spread import ranges


def test_every_value_is_in_one_range() -> None:
    values = [0.004, 0.02, 0.021, 0.3]
    found = ranges(values, 9)
    assert [edge for edge, _ in found] == pytest.approx([0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5])
    assert [number for _, number in found] == [1, 0, 1, 1, 0, 0, 1]


def test_where_there_is_little_room_the_shortest_are_one_range() -> None:
    found = ranges([0.004, 0.02, 0.021, 0.3], 3)
    assert [number for _, number in found] == [3, 0, 1]
    assert ranges([], 3) == ranges([1.0], 0) == []
