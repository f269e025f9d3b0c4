"""What a figure says of its target."""

from __future__ import annotations

from benchmarks.figure import Figure


def test_a_missed_target_is_seen() -> None:
    figure = Figure("A", "cores", 0.25, "cores", "64 streams")
    assert "MISSED; 64 streams" in str(figure.below(0.25))
    assert "MISSED" not in str(figure.below(0.3))
    assert figure.exactly(0.25).is_met
    assert not figure.exactly(0.2).is_met
    assert figure.at_least(0.25).is_met
    assert not figure.at_least(0.26).is_met
