"""How late a loop is found to be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from benchmarks.screen.loop_probe import GRID_SECONDS, LoopProbe


class Loop:
    """A loop whose time is told, and which keeps one alarm."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due = 0.0

    def time(self) -> float:
        return self.now

    def call_soon(self, call: Callable[[], None]) -> None:
        call()

    def call_at(self, due: float, call: Callable[[float], None], argument: float) -> None:
        self.due = due
        self._ring = lambda: call(argument)

    def ring(self, now: float) -> None:
        self.now = now
        self._ring()


def test_a_long_stop_counts_for_each_moment_that_it_covered() -> None:
    loop, probe = Loop(), LoopProbe()
    probe.start(cast(asyncio.AbstractEventLoop, loop))
    loop.ring(loop.due + 0.001)
    assert probe.take() == pytest.approx([0.001])
    due = loop.due
    loop.ring(due + 5.5 * GRID_SECONDS)
    assert probe.take() == pytest.approx([(5.5 - n) * GRID_SECONDS for n in range(6)])
    assert loop.due == pytest.approx(due + 6 * GRID_SECONDS)
    assert probe.take() == ()
