"""When the pump comes, by a clock and with timers in the hands of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partialmethod
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from app.screens.feeds.cadence import MOST, Cadence, Thrift
from app.screens.pump import BREATH_SECONDS, Pump
from engine.api.client import LoadRequest
from engine.batch.shape import ModelShape
from tests.app.screens.stage import Stage, staged
from tests.support.clock import VirtualClock
from tests.support.nvml import Gpu, install

COME_AGAIN = Pump._come_again  # a stage replaces it


class Alarm:
    """A timer that has been set."""

    def __init__(self, delay: float, call: Callable[[], None]) -> None:
        self.delay = delay
        self.call = call
        self.is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True


class Alarms:
    """Those that a stage's pump has set, oldest first, while the screen is stretched."""

    def __init__(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = VirtualClock()
        self.set: list[Alarm] = []
        self.pump = stage.deck.pump
        monkeypatch.setattr(self.pump, "_clock", self.clock)
        monkeypatch.setattr(stage.deck, "set_timer", self._set)
        cpu = VirtualClock(0.0)
        thrift = Thrift(1, self.clock, cpu)
        monkeypatch.setattr(self.pump, "_thrift", thrift)
        thrift.measure(computing=True)
        self.clock.advance(2.0)
        cpu.advance(2.0)
        thrift.measure(computing=True)
        assert thrift.stretch == MOST

    def _set(self, delay: float, call: Callable[[], None]) -> Alarm:
        self.set.append(Alarm(delay, call))
        return self.set[-1]


async def test_a_key_brings_the_next_turn_forward_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with staged(tmp_path) as stage:
        usual = Cadence.fit(on_cpu=True, seen=True)
        await stage.send("a b c d e f")
        await stage.turn(3)
        alarms = Alarms(stage, monkeypatch)
        # What `_come_again` does, which the stage keeps from running by itself.
        alarms.pump._come_at(alarms.clock.now + alarms.pump._pause())
        assert alarms.set[-1].delay == pytest.approx(MOST * usual.stream)
        alarms.clock.advance(0.1)
        alarms.pump.attend()
        first, second = alarms.set
        assert first.is_stopped
        assert second.delay == pytest.approx(usual.stream)
        # Else one who types would never see anything move.
        alarms.clock.advance(0.1)
        alarms.pump.attend()
        assert alarms.set == [first, second]
        assert not second.is_stopped


async def test_keys_are_answered_between_the_parts_of_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with staged(tmp_path) as stage:
        alarms, done = Alarms(stage, monkeypatch), list[str]()
        pump, panels = alarms.pump, stage.deck.panels
        pump.turn(everything=True)
        monkeypatch.setattr(stage.deck.chat, "update", lambda: done.append("chat"))
        monkeypatch.setattr(panels, "show_steps", lambda *_: done.append("steps"))
        monkeypatch.setattr(panels, "show_figures", lambda *_: done.append("figures"))
        monkeypatch.setattr(pump, "_read_devices", lambda: done.append("devices"))
        alarms.clock.advance(2 * pump.cadence.devices)
        for parts in (["chat"], ["chat", "steps"], ["chat", "steps", "figures"]):
            COME_AGAIN(pump)
            assert done == parts
            assert alarms.set[-1].delay == pytest.approx(BREATH_SECONDS)
            alarms.clock.advance(BREATH_SECONDS)
        # The next turn is as far from this one as if it had been taken at once.
        COME_AGAIN(pump)
        assert done[3:] == ["devices"]
        assert alarms.set[-1].delay == pytest.approx(pump._pause() - 3 * BREATH_SECONDS)


async def test_what_becomes_of_the_engine_waits_for_no_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with staged(tmp_path) as stage:
        pump, clock = stage.deck.pump, VirtualClock()
        monkeypatch.setattr(pump, "_clock", clock)
        await stage.send("a b c d e f")
        await stage.turn(3)
        stage.engine.load(LoadRequest("other"))
        assert pump.cadence.engine < pump.cadence.table
        clock.advance(pump.cadence.engine)
        pump.turn()
        assert "◐ 1 request ends before other is loaded" in await stage.screen()


async def test_a_knob_that_is_turned_waits_for_no_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with staged(tmp_path, size=(160, 48)) as stage:
        pump, clock = stage.deck.pump, VirtualClock()
        monkeypatch.setattr(pump, "_clock", clock)
        pump.turn(everything=True)
        stage.engine.set_knobs({"policy": "static"}, "demo")
        stage.engine.advance()
        clock.advance(pump.cadence.engine)
        pump.turn()
        assert " static " in (await stage.screen()).splitlines()[0]


async def test_strip_table_and_map_tell_of_one_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with staged(tmp_path, size=(160, 48)) as stage:
        pump, clock = stage.deck.pump, VirtualClock()
        monkeypatch.setattr(pump, "_clock", clock)
        await stage.send("word " * 40)
        pump.turn(everything=True)
        assert "◌ queued" in await stage.screen()
        stage.engine.advance(3)
        assert pump.cadence.engine < pump.cadence.table
        clock.advance(pump.cadence.engine)
        pump.turn()
        strip, *panels = (await stage.screen()).splitlines()
        assert " run 1 " in strip
        assert "● decode" in "".join(panels)
        used = strip.partition(" KV ")[2].split()[1]
        assert f"· used {used} ·" in "".join(panels)


@pytest.mark.parametrize("delay", [-0.05, 0.0, 0.02])
async def test_a_timer_rings_however_late_it_is_set(
    delay: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter is another thread's for a second between any two looks at the clock."""
    async with staged(tmp_path) as stage:
        rung = asyncio.Event()
        moments = iter(range(20))  # one that looks for ever fails
        monkeypatch.setattr("textual.timer._time.get_time", lambda: float(next(moments)))
        monkeypatch.setattr("textual.timer.sleep", AsyncMock())
        timer = stage.deck.set_timer(delay, rung.set)
        task = timer._task
        assert task is not None
        await task
        monkeypatch.undo()
        await stage.settle()
        assert rung.is_set()


async def test_every_key_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with staged(tmp_path) as stage:
        attended: list[Pump] = []
        # A builtin in a class is no method, and would be called without the pump.
        monkeypatch.setattr(Pump, "attend", lambda pump: attended.append(pump))
        await stage.press("x")
        await stage.press("f2")
        assert attended == 2 * [stage.deck.pump]


async def test_the_gpu_of_the_model_is_read_and_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, Gpu("GPU-1"), Gpu("GPU-2", instances=(Gpu("MIG-2", used=3, total=10),)))
    async with staged(tmp_path, size=(160, 48), ready=False) as stage:
        assert " Devices ─" in await stage.screen()
        card = ModelShape.card
        monkeypatch.setattr(ModelShape, "card", partialmethod(card, gpu_uuid="MIG-2"))
        stage.engine.ready()
        await stage.turn()
        screen = await stage.screen()
        assert " Devices · cpu is GPU1 ─" in screen
        assert "VRAM 3/10 B " in screen
        assert " GPU0 87% 31/80 B ─" in screen
