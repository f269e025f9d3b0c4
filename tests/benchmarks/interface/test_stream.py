"""The figures of `benchmarks.interface` from its observations."""

from __future__ import annotations

import sys

import pytest

if sys.platform == "win32":
    pytest.skip("there are no pseudo-terminals", allow_module_level=True)

from benchmarks.interface.stream import answers, interface_share
from benchmarks.screen.look import Look
from engine.api.status import EnginePhase


def test_what_the_engines_threads_take_is_not_the_interfaces() -> None:
    def look(time: float, **cpu: float) -> Look:
        return Look(time, EnginePhase.READY, 0, 0, cpu, sum(cpu.values()))

    before = look(1.0, MainThread=1.0, engine=5.0)
    after = look(3.0, MainThread=1.25, engine=6.5, reader=0.25)
    assert interface_share(before, after) == pytest.approx(0.25)


def test_a_stop_of_the_loop_misses_its_target_and_one_key_in_many_does_not() -> None:
    taken, late = [0.004] * 199 + [0.4], [0.001] * 90 + [0.3] * 10
    figures = {figure.name: figure for figure in answers("stream", taken, late, "scripted")}
    assert figures["key to its letter, p99"].is_met
    assert not figures["event loop is late, p99"].is_met
    assert figures["event loop is late, most"].value == pytest.approx(300)
