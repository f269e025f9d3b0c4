from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from widgets.panels.batch_chart import HELD_SECONDS, HeldTop


@given(st.lists(st.tuples(st.integers(0, 1000), st.floats(0.0, 8.0)), min_size=1))
def test_all_fits_and_no_more_is_held_than_was_needed_lately(
    steps: list[tuple[int, float]],
) -> None:
    top, now = HeldTop(), 0.0
    needed: list[tuple[float, int]] = []
    for need, pause in steps:
        now += pause
        needed.append((now, need))
        held = top.of(need, now)
        assert held >= need
        assert top.of(need, now) == held
        lately = [n for at, n in needed if at >= now - 2 * HELD_SECONDS - 8.0]
        assert held <= max(lately) or not any(lately)


def test_another_engine_begins_at_0() -> None:
    top = HeldTop()
    assert top.of(500, 1000.0) == 500
    assert top.of(20, 1.0) == 20
