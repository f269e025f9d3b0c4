"""Request-level batching with a window, against a timeline worked out by hand."""

from __future__ import annotations

import pytest

from tests.support.timeline import Timeline


def test_a_batch_starts_when_it_is_full_or_its_first_request_waited_for_the_window() -> None:
    """Triton's dynamic batcher: up to 3 requests, at most 100 ms after the first; a step takes 10.

    | request | prompt | outputs | arrives, ms |
    | a b     | 3 5    | 3 2     | 0 40        |
    | c d     | 2 2    | 1 3     | 120 120     |
    | e f     | 4 1    | 2 1     | 150 160     |
    | g h     | 1 2    | 4 1     | 270 300     |

    0: a waits, alone, until 100. 40: b joins it; the window is a's. 100: they start.
    1 (100-110): 3 and 5 tokens, 2 of padding. 2 (110-120): both; b ends with 2 outputs.
    3 (120-130): a and b's bubble; a ends. c and d came at 120: until 220.
    150: e makes three: they start before the window ends.
    4 (150-160): 2, 2 and 4 tokens, 4 of padding; c ends. 5: d, e and a bubble; e ends.
    6 (170-180): d and two bubbles; d ends. f came at 160: until 260.
    7 (260-270): f alone, and it ends. g comes at 270; the window is 20 ms now.
    8 (290-300): g. h comes at 300: until 320. 9, 10, 11 (300-330): g, whose batch ends at 330.
    12 (330-340): h at once, for its window ended meanwhile.
    """
    line = Timeline(policy="dynamic", static_batch_size=3, batch_window_ms=100.0)
    line.arrive((3, 3))
    assert line.step() == ""
    assert (line.why, line.wake) == ("batch 1/3, or in 100 ms", 100)
    line.at(40)
    line.arrive((5, 2))
    assert line.step() == ""
    assert (line.why, line.wake) == ("batch 2/3, or in 60 ms", 100)
    line.at(99.9)
    assert line.step() == ""
    line.wait()
    assert line.steps(2) == ["A3 B5 pad2", "a b"]
    assert line.ended == "b"
    line.arrive((2, 1), (2, 3))
    assert line.step() == "a bubble1"
    assert line.why == "batch 2/3, until the batch before has ended"
    assert line.engine.core.next_wake is None
    assert line.step() == ""
    assert (line.why, line.wake) == ("batch 2/3, or in 90 ms", 220)
    line.at(150)
    line.arrive((4, 2))
    assert line.step() == "C2 D2 E4 pad4"
    line.arrive((1, 1))
    assert line.steps(3) == ["d e bubble1", "d bubble2", ""]
    assert line.ended == "abcde"
    assert (line.why, line.wake) == ("batch 1/3, or in 80 ms", 260)
    line.wait()
    assert line.step() == "F1"
    line.turn(batch_window_ms=20.0)
    line.arrive((1, 4))
    assert line.step() == ""
    assert line.wake == 290
    line.wait()
    assert line.step() == "G1"
    line.arrive((2, 1))
    assert line.steps(4) == ["g", "g", "g", "H2"]
    line.engine.finish()
    assert line.engine.core.next_wake is None


def test_without_a_window_it_starts_with_what_is_there() -> None:
    line = Timeline(policy="dynamic", static_batch_size=3, batch_window_ms=0.0)
    line.arrive((3, 2), (1, 1))
    assert line.step() == "A3 B1 pad2"
    line.engine.finish()


@pytest.mark.parametrize("order", ["fcfs", "priority", "shortest", "fair"])
def test_the_window_is_that_of_the_first_who_came_whatever_the_order(order: str) -> None:
    """The one that came last may be the head of the queue."""
    line = Timeline(policy="dynamic", order=order, batch_window_ms=50.0)
    start = line.engine.clock.now
    line.engine.submit("a", [1, 2, 3], 1)
    line.step()
    line.engine.clock.advance(0.03)
    line.engine.submit("b", [1], 1, priority=9)
    line.step()
    assert line.engine.core.next_wake == pytest.approx(start + 0.05)


def test_a_deadline_before_the_window_wakes_the_engine_first() -> None:
    line = Timeline(policy="dynamic", batch_window_ms=100.0)
    line.engine.submit("a", [1], 1, deadline=0.02)
    line.engine.submit("b", [1], 1)
    start = line.engine.clock.now
    line.step()
    assert line.engine.core.next_wake == pytest.approx(start + 0.02)
    line.engine.clock.advance(0.02)
    line.step()
    assert line.ended == "a"
    assert line.engine.core.next_wake == pytest.approx(start + 0.1)


def test_paused_it_does_not_wake() -> None:
    line = Timeline(policy="dynamic", batch_window_ms=100.0)
    line.arrive((1, 1))
    line.step()
    line.turn(paused=True)
    line.step()
    assert (line.why, line.engine.core.next_wake) == ("paused", None)
    line.engine.clock.advance(1.0)
    line.turn(paused=False)
    assert line.step() == "A1"
    line.engine.finish()
