from __future__ import annotations

import pytest

from widgets.panels.plot import axis_top


@pytest.mark.parametrize(
    ("peak", "limit", "top"),
    [
        (0.0, 0.0, 1.0),
        (0.64, 0.45, 1.0),
        (0.2, 0.45, 0.5),
        (0.02, 0.45, 0.02),  # the target would leave the line at the bottom
        (13.785, 0.45, 20.0),
        (0.5, 0.0, 0.5),
    ],
)
def test_an_axis_ends_at_a_round_number(peak: float, limit: float, top: float) -> None:
    assert axis_top(peak, limit) == pytest.approx(top)
