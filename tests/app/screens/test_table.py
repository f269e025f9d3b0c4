"""The table of chats on the screen: what it lists, and what is picked in it."""

from __future__ import annotations

from pathlib import Path

from tests.app.screens.stage import staged
from widgets.chat_number import ChatNumber


async def test_open_chats_are_listed_after_a_restart(tmp_path: Path) -> None:
    """Review, 11: with 20 chats it said that no request had come."""
    async with staged(tmp_path) as stage:
        for text in ("one", "two", "three"):
            await stage.press("ctrl+n")
            await stage.send(text)
            await stage.finish()
    for ready in (True, False):  # before there is a model, too
        async with staged(tmp_path, size=(160, 48), ready=ready) as stage:
            await stage.turn()
            screen = await stage.screen()
            assert "─ Chats 3 · " in screen
            for row in ("1   one", "2   two", "3   three"):
                assert row in screen
            await stage.press("f2", "home", "enter")
            assert stage.sessions.current.title == "one"
            assert stage.deck.chat.prompt.area.has_focus


async def test_esc_clears_the_filter_first_and_then_leaves(tmp_path: Path) -> None:
    async with staged(tmp_path, size=(80, 24)) as stage:
        await stage.press("f2", "1", "slash", *"xyz", "enter")
        assert "No chat matches 'xyz'; esc shows all." in await stage.screen()
        await stage.press("escape")
        assert "Chats 1 · / filter" in await stage.screen()
        assert stage.deck.panels.table.has_focus
        await stage.press("escape")
        assert stage.deck.chat.prompt.area.has_focus


async def test_the_chat_that_is_gone_to_stands_out_on_the_map(tmp_path: Path) -> None:
    async with staged(tmp_path, lambda _: "word " * 400, size=(160, 48)) as stage:
        await stage.send("one")
        await stage.press("ctrl+n")
        await stage.send("two")
        await stage.turn(3)
        assert stage.deck.panels.kv.selected == ChatNumber(2)
        await stage.press("alt+1")
        assert stage.deck.panels.kv.selected == ChatNumber(1)
        await stage.press("f2", "home", "down")
        assert stage.deck.panels.kv.selected == ChatNumber(2)
        assert stage.sessions.current.title == "one"  # looking is not going


async def test_a_chat_without_a_request_has_nothing_to_steer(tmp_path: Path) -> None:
    async with staged(tmp_path, size=(160, 48)) as stage:
        await stage.press("f2", "x", "plus")
        assert stage.toasts[-1] == (
            "This chat has no request; only running and waiting requests have one."
        )


async def test_a_turn_that_was_refused_is_a_failed_one_in_the_table_too(tmp_path: Path) -> None:
    async with staged(tmp_path, size=(160, 48)) as stage:
        await stage.send("one")
        await stage.finish()
        assert "✓ done" in await stage.screen()
        stage.sessions.current.chat.send("word " * 30_000)
        await stage.turn()
        screen = await stage.screen()
        assert "1 ✗ one" in screen
        (row,) = (line for line in screen.splitlines() if "✗ error" in line)
        assert row[:73].split("✗ error")[1].strip().startswith("– the prompt is too")
        assert "✓ done" not in screen
    async with staged(tmp_path, size=(160, 48)) as stage:
        assert "✗ error" in await stage.screen()
