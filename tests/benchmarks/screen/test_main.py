"""The figures of `benchmarks.screen` from step records."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import pytest

from benchmarks.screen.look import Look
from engine.api.status import EnginePhase
from engine.api.telemetry import PhaseTimes
from tests.widgets.samples import record

if sys.platform == "win32":
    pytest.skip("there are no pseudo-terminals", allow_module_level=True)

from benchmarks.screen.__main__ import rows
from benchmarks.screen.program import KEYS, LEAD_SECONDS, Program
from benchmarks.screen.window import Turn, Window, window_of


def look(time: float, step: int, **cpu: float) -> Look:
    threads = {"engine": 0.0, "engine-text": 0.0, **cpu}
    return Look(time, EnginePhase.READY, step, 16, threads, sum(threads.values()))


def test_a_window_counts_the_steps_that_lie_in_it() -> None:
    steps = [record(n, output_tokens=16) for n in range(200)]  # one each 12 ms
    before = look(0.6, 50, MainThread=1.0)
    after = look(1.8, 150, MainThread=1.06, engine=0.9)
    window = window_of(Turn(before, after, 1200, [0.004, 0.002, 0.003], steps))
    assert window.rate == pytest.approx(16 / 0.012)
    assert window.step == pytest.approx(12.0)
    assert window.p99 == pytest.approx(12.0)
    # What of the 12 ms were none of the runner's 0.2, 10.6 and 0.5.
    assert window.beside == pytest.approx(0.7)
    assert window.interface == pytest.approx(50.0)
    assert window.engine == pytest.approx(750.0)
    assert window.pools == pytest.approx(0.0, abs=1e-9)
    assert window.painted == pytest.approx(1000.0)
    assert window.key == pytest.approx(3.0)
    assert window.late is None


def test_the_step_that_came_late_shows_in_the_percentile_and_not_in_the_median() -> None:
    steps = [record(n, times=PhaseTimes(sample=0.0002)) for n in range(60)]
    # One of 60 goes on 5 ms later than it could.
    steps[30] = replace(steps[30], end=steps[30].end + 0.005, times=PhaseTimes(sample=0.0052))
    window = window_of(Turn(look(0.0, 0), look(1.0, 60), 0, [], steps), waits=True)
    assert window.step == pytest.approx(12.0)
    assert 12.0 < window.p99 < 17.0
    assert window.late is not None
    assert 0.2 < window.late < 5.2


def test_the_ratios_are_of_rounds_and_not_of_medians() -> None:
    def window(rate: float, p99: float) -> Window:
        return Window(rate, 1.0, p99, 1.0, None, 1.0, 1.0, 1.0, 1.0, 1.0, None)

    windows = {
        "headless": [window(100.0, 4.0), window(200.0, 5.0), window(50.0, 6.0)],
        "screen": [window(90.0, 6.0), window(190.0, 6.0), window(40.0, 6.0)],
    }
    ratios = [row[2:4] for row in rows("m", windows)]
    assert ratios == [("1.000", "1.00"), ("0.900", "1.20")]


def test_all_ask_anew_before_a_reply_ends_within_a_turn() -> None:
    program = Program("screen", 0, None, None, ["a"], 1536)  # type: ignore[arg-type]
    assert program.has_room(3.0)
    pace = 50
    program.turns.append(Turn(look(0.0, 100), look(2.0, 100 + 2 * pace), 0, []))
    last, needed = 100 + 2 * pace, 2 * pace * (LEAD_SECONDS + 3.0)
    program.asked_at = round(last + needed) - program.output_tokens + 1
    assert program.has_room(3.0)
    program.asked_at -= 2
    assert not program.has_room(3.0)


def test_what_streams_while_keys_are_pressed_is_not_left_for_the_next_turn() -> None:
    program = Program("screen", 0, None, None, ["a"], 1536)  # type: ignore[arg-type]
    pace = 50
    program.turns.append(Turn(look(0.0, 100), look(2.0, 100 + 2 * pace), 0, [0.5] * 8))
    program.asked_at = round(100 + 2 * pace + 2 * pace * (LEAD_SECONDS + 3.0)) - 1536 + 1
    assert not program.has_room(3.0)


class Interface:
    """A terminal, pipe and clock in one: chats that ask again only once their end is taken in.

    Attributes:
        refused: keys that came too early.
    """

    def __init__(self, chats: int, settled_at: float) -> None:
        self.now, self.refused = 0.0, 0
        self._settled_at = settled_at
        self._streaming = [False] * chats
        self._current = -1

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def type(self, key: str) -> None:
        if key == KEYS["next"]:
            self._current = (self._current + 1) % len(self._streaming)
        elif key == KEYS["again"] and self.now >= self._settled_at:
            self._streaming[self._current] = True
        elif key == KEYS["again"]:
            self.refused += 1

    def send(self, what: str) -> None:
        assert what == "look"

    def poll(self, seconds: float) -> bool:
        return True

    def recv(self) -> Look:
        return Look(self.now, EnginePhase.READY, 0, sum(self._streaming), {}, 0.0)


def test_a_chat_whose_end_is_not_on_screen_yet_is_asked_again_until_it_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interface = Interface(2, settled_at=0.2)
    monkeypatch.setattr(time, "sleep", interface.sleep)
    monkeypatch.setattr(time, "monotonic", lambda: interface.now)
    program = Program("screen", 0, interface, interface, ["a", "b"], 1536)  # type: ignore[arg-type]
    program.ask(again=True)
    assert program.look().running == 2
    assert interface.refused == 1
