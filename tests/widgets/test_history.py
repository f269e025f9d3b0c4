from __future__ import annotations

import math

from widgets.glyphs import UNICODE
from widgets.panels.plot import CAPACITY, Sparkline

RAMP = UNICODE.ramp


def history(*values: float | None) -> Sparkline:
    filled = Sparkline()
    for value in values:
        filled.add(value)
    return filled


def test_newest_values_stand_at_the_right_from_zero_to_the_largest() -> None:
    assert history(0, 35, 70).cells(RAMP, 5) == "  ▁▅█"
    assert history(70, 0, 35).cells(RAMP, 2) == "▁█"


def test_gaps_stay_gaps() -> None:
    assert history(1, None, math.nan, 1).cells(RAMP, 4) == "█  █"


def test_nothing_but_zeros_is_flat_and_nothing_is_blank() -> None:
    assert history(0, 0).cells(RAMP, 2) == "▁▁"
    assert history().cells(RAMP, 3) == "   "
    assert history(1).cells(RAMP, 0) == ""


def test_it_is_bounded() -> None:
    filled = history(*range(10 * CAPACITY))
    assert len(filled.cells(RAMP, 10 * CAPACITY).lstrip()) == CAPACITY
