"""The chats at the side: what they show, and what is done there."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.geometry import Offset

from tests.app.screens.stage import REPLIES, Stage, staged
from tests.widgets.hosting import rows


async def chats(stage: Stage, *texts: str) -> None:
    for text in texts:
        await stage.press("ctrl+n")
        await stage.send(text)
        await stage.finish()


def listed(stage: Stage) -> list[str]:
    lines = rows(stage.deck.chat.list)
    return [line.rstrip() for line in lines if line.strip()]


async def test_all_chats_stand_at_the_side_where_there_is_room(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(170, 40)) as stage:
        await chats(stage, "one", "two")
        await stage.press("alt+1", "ctrl+w")
        await stage.send("long")
        await stage.turn(3)
        assert stage.deck.chat.list.display
        assert not stage.deck.chat.bar.display
        lines = listed(stage)
        assert lines[0].startswith("▸  2 ● two")
        assert lines[1].startswith("       scripted")
        assert lines[1].endswith(" now")
        assert lines[2].startswith("   1 ○ one")
        await stage.press("ctrl+n")
        await stage.turn(2)
        assert any("two" in line and line.endswith("*") for line in listed(stage))


async def test_the_side_grows_with_the_terminal(tmp_path: Path) -> None:
    """Titles had 20 cells, however wide the terminal was."""
    title = "Who built the Roman roads, and how were they drained?"
    for columns, first in (
        (170, "Who built the Roman"),
        (240, "Who built the Roman roads, and how"),
    ):
        async with staged(tmp_path, size=(columns, 40)) as stage:
            stage.sessions.rename(stage.sessions.current, title)
            await stage.turn()
            assert listed(stage)[0].rstrip().endswith(f" {first}")


async def test_a_chat_is_opened_by_key_and_click(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(170, 40)) as stage:
        await chats(stage, "one", "two", "code")
        await stage.press("ctrl+t", "down", "down", "enter")
        assert stage.sessions.current.title == "one"
        assert stage.deck.chat.prompt.area.has_focus
        await stage.pilot.click(stage.deck.chat.list, offset=Offset(8, 0))
        await stage.settle()
        assert stage.sessions.current.title == "code"


async def test_keys_act_on_the_chat_under_the_cursor(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(170, 40)) as stage:
        await chats(stage, "one", "two")
        await stage.press("ctrl+t", "end", "f8")
        assert [c.title for c in stage.store.conversations()] == ["two"]
        assert stage.sessions.current.title == "two"
        await stage.press("f12")
        assert stage.sessions.current.title == "one"


async def test_the_key_shows_goes_there_and_hides(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(160, 40)) as stage:
        view = stage.deck.chat.list
        assert not view.display
        await stage.press("ctrl+t")
        assert view.display
        assert view.has_focus
        await stage.press("ctrl+t")
        assert not view.display
        assert stage.deck.chat.prompt.area.has_focus


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_where_the_side_has_no_room_the_key_shows_a_table_above_the_chat(
    size: tuple[int, int], tmp_path: Path
) -> None:
    async with staged(tmp_path, REPLIES, size=size) as stage:
        table, area = stage.deck.panels.table, stage.deck.chat.prompt.area
        assert not table.display
        await stage.press("ctrl+t")
        await stage.settle()
        assert table.has_focus
        assert 0 < table.region.height < area.region.y
        await stage.press("ctrl+t")
        assert not table.display
        assert area.has_focus


async def test_a_terminal_without_room_for_a_table_says_what_finds_chats(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(80, 20)) as stage:
        await stage.press("ctrl+t")
        assert stage.toasts == ["There is no room to list the chats; f3 finds them."]


async def test_what_another_program_does_is_seen(tmp_path: Path) -> None:
    from app.store.conversation import Conversation
    from app.store.store import Store

    async with staged(tmp_path, REPLIES, size=(170, 40)) as stage:
        other = Store(tmp_path / "batchdeck.db")
        other.save_conversation(Conversation(title="theirs", is_open=False))
        other.close()
        await stage.turn()
        assert any("theirs" in line for line in listed(stage))


async def test_pinned_chats_stand_first_until_they_are_unpinned(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(170, 40)) as stage:

        async def titles() -> list[str]:
            await stage.turn()
            return [line.split()[-1] for line in listed(stage)[::2]]

        await chats(stage, "one", "two", "code")
        assert await titles() == ["code", "two", "one"]
        await stage.press("ctrl+t", "end", "alt+t")
        assert await titles() == ["one", "code", "two"]
        await stage.press("escape", "alt+1", "alt+2", "alt+t")
        assert await titles() == ["one", "two", "code"]
        assert stage.toasts[-1] == "“two” is pinned. f12 undoes."
        stage.deck.action_run("chat.pin")
        assert await titles() == ["one", "code", "two"]
        await stage.press("f12")
        assert await titles() == ["one", "two", "code"]
        await stage.press("f12", "f12", "f12")
        assert await titles() == ["code", "two", "one"]
        names = {command.title for command in stage.app.get_system_commands(stage.deck)}
        assert ("Pin chat" in names, "Unpin chat" in names) == (True, False)


async def test_a_chat_is_pinned_where_it_is_found(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.press("alt+t")
        assert "no message yet" in stage.toasts[-1]
        await chats(stage, "one", "two")
        await stage.press("f3", *"one")
        await stage.turn()
        await stage.press("alt+t")
        await stage.turn()
        assert "· pinned" in await stage.screen()
        assert [c.title for c in stage.store.conversations() if c.pinned_at] == ["one"]
