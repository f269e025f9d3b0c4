"""What `benchmarks.screen` makes of step records."""

from __future__ import annotations

import sys

import pytest

from benchmarks.screen.look import Look
from engine.snapshot import EnginePhase
from tests.widgets.samples import record

if sys.platform == "win32":
    pytest.skip("there are no pseudo-terminals", allow_module_level=True)

from benchmarks.screen.__main__ import (
    LEAD_SECONDS,
    OUTPUT_TOKENS,
    Program,
    Turn,
    Window,
    _window,
    rows,
)


def look(time: float, step: int, **cpu: float) -> Look:
    threads = {"engine": 0.0, "engine-text": 0.0, **cpu}
    return Look(time, EnginePhase.READY, step, 16, threads, sum(threads.values()))


def test_a_window_counts_the_steps_that_lie_in_it() -> None:
    steps = [record(n, output_tokens=16) for n in range(200)]  # one each 12 ms
    before = look(0.6, 50, MainThread=1.0)
    after = look(1.8, 150, MainThread=1.06, engine=0.9)
    window = _window(Turn(before, after, 1200, [0.004, 0.002, 0.003]), steps)
    assert window.rate == pytest.approx(16 / 0.012)
    assert window.step == pytest.approx(12.0)
    # What of the 12 ms were none of the runner's 0.2, 10.6 and 0.5.
    assert window.beside == pytest.approx(0.7)
    assert window.interface == pytest.approx(50.0)
    assert window.engine == pytest.approx(750.0)
    assert window.pools == pytest.approx(0.0, abs=1e-9)
    assert window.painted == pytest.approx(1000.0)
    assert window.key == pytest.approx(3.0)


def test_the_ratio_is_of_rounds_and_not_of_medians() -> None:
    def window(rate: float) -> Window:
        return Window(rate, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)

    windows = {
        "headless": [window(100.0), window(200.0), window(50.0)],
        "screen": [window(90.0), window(190.0), window(40.0)],
    }
    ratios = [row[2] for row in rows("m", windows)]
    assert ratios == ["1.000", "0.900"]


def test_all_ask_anew_before_a_reply_ends_within_a_turn() -> None:
    program = Program("screen", 0, None, None, ["a"])  # type: ignore[arg-type]
    assert program.has_room(3.0)
    pace = 50
    program.turns.append(Turn(look(0.0, 100), look(2.0, 100 + 2 * pace), 0, []))
    last, needed = 100 + 2 * pace, 2 * pace * (LEAD_SECONDS + 3.0)
    program.asked_at = round(last + needed) - OUTPUT_TOKENS + 1
    assert program.has_room(3.0)
    program.asked_at -= 2
    assert not program.has_room(3.0)
