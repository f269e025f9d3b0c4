"""The keys at the bottom of the screen."""

from __future__ import annotations

from pathlib import Path

from textual.widgets._footer import FooterKey

from app.screens.key_bar import KeyBar
from tests.app.screens.stage import staged
from tests.support.linked import until


def keys(bar: KeyBar) -> list[FooterKey]:
    return list(bar.query(FooterKey))


async def test_keys_that_still_act_are_not_made_anew(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        bar = stage.deck.query_one(KeyBar)
        before = keys(bar)
        assert before
        stage.deck.refresh_bindings()
        await stage.screen()
        assert keys(bar) == before


async def test_keys_are_made_anew_when_others_act(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        bar = stage.deck.query_one(KeyBar)
        # Textual asks for keys once the screen has been painted, which no message waits for.
        before = [key.description for key in keys(bar)]
        await stage.press("f2")
        await until(lambda: [key.description for key in keys(bar)] != before)
        await stage.press("f2")
        await until(lambda: [key.description for key in keys(bar)] == before)


async def test_the_map_of_the_cache_says_how_a_block_is_picked(tmp_path: Path) -> None:
    async with staged(tmp_path, size=(120, 40)) as stage:
        await stage.press("f2", "3")
        bar = stage.deck.query_one(KeyBar)
        await until(lambda: ("↑↓←→", "Pick block") in named(bar))


def named(bar: KeyBar) -> list[tuple[str, str]]:
    return [(key.key_display, key.description) for key in keys(bar)]
