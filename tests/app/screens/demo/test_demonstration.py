"""The interface with a crowd in it, until somebody takes over."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import cast

import pytest

from app.screens.demo import demonstration
from app.screens.demo.crowd import ENTER_SECONDS
from app.screens.demo.demonstration import (
    BACK_SECONDS,
    CAPTION_SECONDS,
    PANE_SECONDS,
    POLICY,
    POLICY_SECONDS,
    TAKEN_OVER,
    WAITING,
    Demonstration,
)
from app.screens.keys.help import HelpScreen
from app.screens.tui import Tui
from tests.app.screens.stage import Stage, staged
from tests.support.clock import VirtualClock
from tests.widgets.hosting import paste


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    # It acts when it is told to, and not by a timer.
    monkeypatch.setattr(demonstration, "TURN_SECONDS", 1e6)
    return VirtualClock(0.0)


def kind(clock: VirtualClock) -> type[Tui]:
    return cast(type[Tui], partial(Demonstration, clock=clock))


async def hold(stage: Stage, clock: VirtualClock, seconds: float, steps: int = 4) -> None:
    """Let the crowd act for a while."""
    app = stage.app
    assert isinstance(app, Demonstration)
    end = clock() + seconds
    while clock() < end:
        app.demonstrate()
        await stage.turn(steps)
        clock.advance(0.25)


def line(screen: str) -> str:
    """The caption, without what stands before it."""
    return screen.split("\n")[1][2:].strip()


async def test_the_crowd_chats_and_captions_say_what_is_seen(
    tmp_path: Path, clock: VirtualClock
) -> None:
    async with staged(tmp_path, size=(160, 48), kind=kind(clock)) as stage:
        assert line(await stage.screen()) == WAITING
        await hold(stage, clock, 4 * ENTER_SECONDS)
        assert len(stage.sessions.sessions) == 4
        shared = "16 of 28 prompt tokens were cached: chats share equal beginnings."
        assert line(await stage.screen()) == shared


async def test_a_key_takes_over_and_what_is_in_flight_goes_on(
    tmp_path: Path, clock: VirtualClock
) -> None:
    keys = {"view.mode": "f20"}
    async with staged(tmp_path, size=(160, 48), kind=kind(clock), keys=keys) as stage:
        await hold(stage, clock, 3 * ENTER_SECONDS, steps=0)
        await stage.press("h", "i")
        assert stage.prompt == "i"
        told = f"{TAKEN_OVER} f20 engine, f1 every key, ^q quits."
        assert line(await stage.screen()) == told
        asked, running = len(stage.engine.submissions), stage.sessions.num_busy
        assert running == asked > 1
        await hold(stage, clock, 4 * ENTER_SECONDS)
        await stage.finish()
        assert len(stage.engine.submissions) == asked
        assert stage.sessions.num_busy == 0
        assert all(s.chat.messages[-1].content for s in stage.sessions.sessions)


@pytest.mark.parametrize(
    ("first", "at_table"), [("escape", False), ("x", False), ("x", True), ("paste", False)]
)
async def test_what_takes_over_does_nothing_else(
    tmp_path: Path, clock: VirtualClock, first: str, at_table: bool
) -> None:
    async with staged(tmp_path, size=(160, 48), kind=kind(clock)) as stage:
        await hold(stage, clock, 3 * ENTER_SECONDS, steps=0)
        running = stage.sessions.num_busy
        if at_table:
            stage.deck.panels.table.focus()
        if first == "paste":
            await paste(stage.app, "text")
        else:
            await stage.press(first)
        await stage.turn(1)
        assert (stage.sessions.num_busy, stage.prompt) == (running, "")
        assert isinstance(stage.app, Demonstration)
        assert stage.app.is_over


async def test_what_is_told_who_takes_over_goes_after_a_while(
    tmp_path: Path, clock: VirtualClock
) -> None:
    async with staged(tmp_path, size=(160, 48), kind=kind(clock)) as stage:
        await hold(stage, clock, 0.25)
        await stage.press("x")
        await hold(stage, clock, CAPTION_SECONDS - 1.0)
        assert line(await stage.screen()).startswith("You have taken over")
        await hold(stage, clock, 2.0)
        assert "You have taken over" not in await stage.screen()


async def test_a_key_that_leads_elsewhere_does_so_too(tmp_path: Path, clock: VirtualClock) -> None:
    for key, keys in (("f1", {}), ("f20", {"app.help": "f20"})):
        folder = tmp_path / key
        folder.mkdir()
        async with staged(folder, kind=kind(clock), keys=keys) as stage:
            await stage.press(key)
            assert isinstance(stage.app.screen, HelpScreen)
    async with staged(tmp_path, kind=kind(clock)) as stage:
        await stage.press("f2")
        assert stage.deck.has_class("-engine")


async def test_the_policy_changes_and_changes_back(tmp_path: Path, clock: VirtualClock) -> None:
    async with staged(tmp_path, size=(160, 48), kind=kind(clock)) as stage:
        await hold(stage, clock, 0.25)
        snapshot = stage.engine.snapshot()
        assert snapshot is not None
        before = stage.deck.engine.knob("policy")
        assert before is not None
        clock.advance(POLICY_SECONDS)
        await hold(stage, clock, 0.5)
        changed = stage.deck.engine.knob("policy")
        assert changed is not None
        assert changed.requested == POLICY != before.requested
        clock.advance(BACK_SECONDS - POLICY_SECONDS)
        await hold(stage, clock, 0.5)
        assert stage.deck.engine.knob("policy") == before


async def test_who_takes_over_has_the_policy_of_the_beginning(
    tmp_path: Path, clock: VirtualClock
) -> None:
    async with staged(tmp_path, size=(160, 48), kind=kind(clock)) as stage:
        await hold(stage, clock, 0.25)
        before = stage.deck.engine.knob("policy")
        clock.advance(POLICY_SECONDS)
        await hold(stage, clock, 0.5)
        assert stage.deck.engine.knob("policy") != before
        await stage.press("h")
        await stage.turn(1)
        assert stage.deck.engine.knob("policy") == before


async def test_where_not_all_fits_chat_and_panels_come_by_turns(
    tmp_path: Path, clock: VirtualClock
) -> None:
    async with staged(tmp_path, size=(80, 24), kind=kind(clock)) as stage:
        await hold(stage, clock, 0.25)
        modes = []
        for _ in range(5):
            modes.append(stage.deck.has_class("-engine"))
            clock.advance(PANE_SECONDS)
            await hold(stage, clock, 0.25)
        assert modes == [False, True, True, True, False]
