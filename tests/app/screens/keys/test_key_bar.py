"""The keys at the bottom of the screen."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.screens.keys.key_bar import KeyBar
from tests.app.screens.stage import REPLIES, staged
from tests.widgets.hosting import screen


def words(bar: KeyBar) -> list[str]:
    return [key.words for key in bar.visible_keys()]


async def test_keys_that_still_act_are_not_painted_anew(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        bar = stage.deck.key_bar
        await stage.bar("f1 Help")
        before = bar.render_line(0)
        stage.deck.refresh_bindings()
        await stage.screen()
        assert bar.render_line(0) is before


async def test_others_are_shown_when_others_act(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.bar("f1 Help")
        await stage.press("f2")
        await stage.bar("esc Chat")
        await stage.press("f2")
        await stage.bar("esc Chat", shown=False)


async def test_a_picture_of_the_screen_waits_for_no_timer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys that act are asked for in what is put off until the screen has been painted."""
    monkeypatch.setattr("textual.screen.UPDATE_PERIOD", 3600.0)
    async with staged(tmp_path) as stage:
        await stage.settle()
        stage.deck.chat.refresh()
        asked: list[str] = []
        stage.deck.call_after_refresh(asked.append, "keys")
        await stage.screen()
        assert asked


async def test_a_click_on_a_key_is_that_key(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.bar("f2 Engine")
        line = screen(stage.app)[-1]
        await stage.pilot.click(KeyBar, offset=(line.index("Engine"), 0))
        await stage.bar("esc Chat")


async def test_help_comes_first_and_the_palette_stands_at_the_right(tmp_path: Path) -> None:
    async with staged(tmp_path, size=(160, 48)) as stage:
        bar = stage.deck.key_bar
        assert words(bar)[0] == "Help"
        assert screen(stage.app)[-1].rstrip().endswith(words(bar)[-1])
        assert bar.visible_keys()[-1].id == "app.palette"


async def test_below_a_dialog_no_key_of_the_screen_is_shown(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.bar("f3 Find")
        await stage.press("f3")
        await stage.bar("f3 Find", shown=False)
        assert words(stage.deck.key_bar) == ["Help", "Quit"]
        await stage.press("escape")
        await stage.bar("f3 Find")


async def test_among_messages_the_keys_of_the_marked_one_are_shown(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(160, 48)) as stage:
        for text in ("one", "code"):
            await stage.send(text)
            await stage.finish()
        await stage.press("ctrl+up")
        await stage.bar("y Copy code  c Copy message  ^r Regen  e Edit  f Fork here")
        await stage.press("up")
        await stage.bar("y Copy code", shown=False)
        await stage.bar("] Next branch", shown=False)
        await stage.press("escape", "ctrl+r")
        await stage.finish()
        await stage.press("ctrl+up")
        await stage.bar("[ Previous branch  ] Next branch")


async def test_another_reply_is_offered_only_where_one_can_be_asked_for(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, mqtt=True) as stage:
        await stage.bar("f2 Engine")
        await stage.bar("Regen", shown=False)
        await stage.send("one")
        await stage.turn(1)
        await stage.bar("Regen", shown=False)
        await stage.finish()
        await stage.bar("^r Regen")
        await stage.press("ctrl+n")
        await stage.bar("Regen", shown=False)
        stage.sessions.watch(stage.gateway.ask("alice", "s1", "two"))
        await stage.finish()
        await stage.bar("Regen", shown=False)
