"""The layout of the deck, and the keys of each part."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tests.app.screens.stage import REPLIES, Stage, staged
from tests.widgets.hosting import rows, settle
from widgets.panels.session_table import SessionTable


async def test_modes_and_panels_of_a_small_terminal(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(80, 24)) as stage:
        deck = stage.deck
        shown = [panel for _, panel in deck.panels.numbered if panel.display]
        assert shown == []
        assert deck.chat.display
        await stage.press("f2")
        assert not deck.chat.display
        assert isinstance(stage.app.focused, SessionTable)
        for number, (_, panel) in enumerate(deck.panels.numbered, 1):
            await stage.press(str(number))
            shown = [panel for _, panel in deck.panels.numbered if panel.display]
            pair = [deck.panels.latency, deck.panels.devices]
            assert shown == (pair if panel in pair else [panel])
            await stage.settle()
            assert sum(panel.region.height for panel in shown) > 18
            assert stage.app.focused is panel
        assert deck.panels.kpi.region.height == 1
        await stage.press("f2")
        assert deck.chat.display
        assert deck.chat.prompt.area.has_focus


async def test_no_size_is_too_small_to_chat(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(40, 8)) as stage:
        for size in ((40, 8), (59, 15), (60, 16), (80, 24), (109, 24), (110, 24)):
            await stage.pilot.resize_terminal(*size)
            await stage.press("ctrl+n", *"one", "enter")
            await stage.finish()
            assert "The first reply." in await stage.screen(), size
            assert stage.deck.panels.kpi.region.height == 1, size
            await stage.press("f2")
            assert "TTFT" in await stage.screen(), size
            await stage.press("f2")


async def test_chat_and_engine_stand_side_by_side_and_reflow(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(160, 48)) as stage:
        deck = stage.deck
        panels = [panel for name, panel in deck.panels.numbered if name not in ("MQTT", "HTTP")]
        everything = [deck.chat, *panels]
        assert all(widget.display for widget in everything)
        regions = [widget.region for widget in everything]
        assert not any(a.overlaps(b) for i, a in enumerate(regions) for b in regions[i + 1 :])
        await stage.pilot.resize_terminal(120, 40)
        assert deck.chat.display
        assert deck.panels.batch.display
        assert not deck.panels.table.display
        await stage.press("f2")
        assert not deck.chat.display
        assert all(panel.display for panel in panels)
        await stage.pilot.resize_terminal(80, 24)
        assert [p for _, p in deck.panels.numbered if p.display] == [deck.panels.table]


async def test_the_focus_comes_back_from_a_pane_that_has_no_room(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(160, 48)) as stage:
        await stage.press("f2")
        assert stage.deck.panels.table.has_focus
        await stage.pilot.resize_terminal(80, 24)
        await stage.settle()
        assert stage.deck.chat.prompt.area.has_focus


async def test_a_panel_is_zoomed_and_back(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(160, 48)) as stage:
        await stage.press("shift+tab", "3")
        before = stage.deck.panels.kv.region
        await stage.press("z")
        await stage.settle()
        zoomed = stage.deck.panels.kv.region
        assert zoomed.width > before.width
        screen = (await stage.screen()).splitlines()
        assert "tok/s" in screen[0]
        assert "f1 Help" in screen[-1]
        assert zoomed.height == 46, "all rows but those of the figures and the keys"
        await stage.press("z")
        await stage.settle()
        assert stage.deck.panels.kv.region == before


async def test_where_a_panel_is_zoomed_the_one_that_keys_go_to_is_on_view(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(120, 40)) as stage:
        panels = stage.deck.panels
        await stage.press("f2", "7", "z", "2")
        assert stage.deck.maximized is panels.batch
        await stage.press("escape", "escape")
        assert stage.deck.maximized is None
        await stage.press("f2", "z", "alt+1")
        assert stage.deck.maximized is None
        assert stage.deck.chat.prompt.area.has_focus


async def test_tab_goes_through_the_panels_of_a_small_terminal(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(80, 24)) as stage:
        await stage.press("f2", "6", "down", "down", "enter", "1")  # typed into a number
        panels = stage.deck.panels
        assert panels.knobs.has_focus_within
        for panel in (panels.log, panels.mqtt, panels.http, panels.table):
            await stage.press("tab")
            assert stage.deck.focused is panel
        await stage.press("shift+tab")
        assert stage.deck.focused is panels.http


async def test_escape_leaves_the_engine_view_before_it_stops_a_reply(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(80, 24)) as stage:
        await stage.send("long")
        await stage.turn(2)
        await stage.bar("esc Stop")
        await stage.press("f2")
        await stage.bar("esc Chat")
        await stage.bar("esc Stop", shown=False)
        await stage.press("escape")
        await stage.bar("esc", shown=False)
        await stage.press("escape")
        await stage.turn(1)
        await stage.bar("esc Stop")
        assert not stage.deck.has_class("-engine")
        assert stage.sessions.current.chat.is_busy
        await stage.press("escape")
        await stage.turn(1)
        assert not stage.sessions.current.chat.is_busy


async def test_escape_beside_the_chat_goes_to_the_prompt_before_it_stops_a_reply(
    tmp_path: Path,
) -> None:
    async with staged(tmp_path, REPLIES, size=(160, 48)) as stage:
        for panel in "23467":
            await stage.press("ctrl+n")
            await stage.send("long")
            await stage.turn(2)
            await stage.press("f2", panel)
            await stage.bar("esc Chat")
            await stage.press("escape")
            assert stage.deck.chat.prompt.area.has_focus, panel
            await stage.turn(1)
            assert stage.sessions.current.chat.is_busy, panel
            await stage.bar("esc Stop")
            await stage.press("escape")
            await stage.turn(1)
            assert not stage.sessions.current.chat.is_busy, panel


async def test_the_keys_below_fit(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(80, 24)) as stage:
        await stage.press("f2")
        for size, panel in product(((80, 24), (120, 40)), "12345678"):
            await stage.pilot.resize_terminal(*size)
            await stage.press(panel)
            bar = (await stage.screen()).splitlines()[-1]
            keys = stage.deck.key_bar.visible_keys()
            # Each is there in full, and they stand in their order.
            found = [bar.find(f" {key.sign} {key.words} ") for key in keys]
            assert -1 not in found, (size, panel, bar)
            assert found == sorted(found), (size, panel, bar)
            assert "Chat" in [key.words for key in keys], (size, panel)


async def test_an_idle_map_is_not_the_largest_room(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(120, 40)) as stage:
        panels = stage.deck.panels
        for size in ((120, 40), (160, 48), (200, 60)):
            await stage.pilot.resize_terminal(*size)
            await stage.settle()
            height = panels.kv.region.height
            assert height <= 9, size
            assert panels.batch.region.height > height, size
            assert panels.latency.region.height > height, size
            assert not panels.table.display or panels.table.region.height > height, size


async def test_beside_a_broker_and_a_full_map_there_is_a_chart(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, mqtt=True, size=(160, 48)) as stage:
        await stage.send("one")
        await stage.finish()
        panels = stage.deck.panels
        panels.kv.styles.min_height = 12
        await stage.settle()
        assert panels.kv.region.height == 12
        assert "-30s" in "".join(rows(panels.latency))


async def test_what_is_said_in_passing_covers_nothing_that_moves(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(80, 24), notices=True) as stage:
        before = (await stage.screen()).splitlines()
        stage.deck.notify("The first sentence.")
        stage.deck.notify("The second sentence.")
        await settle(stage.app)
        await stage.settle()
        after = (await stage.screen()).splitlines()
        assert after[:-1] == before[:-1]
        assert "The second sentence." in after[-1]
        assert "f1 Help" not in after[-1]


async def test_the_panel_with_the_focus_stands_out(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(160, 48)) as stage:
        await stage.press("f2", "4")
        panels = stage.deck.panels
        names = {
            panel: next(s.style for s in panel.render_line(0) if s.text[0].isalpha())
            for panel in (panels.latency, panels.devices)
        }
        assert names[panels.latency] == panels.latency.palette.strong
        assert names[panels.devices] == panels.devices.palette.text
        await stage.press("5")
        assert "lag: how late the screen is" in await stage.screen()


@pytest.mark.parametrize("size", [(120, 40), (160, 48), (200, 60)])
async def test_the_map_is_as_high_as_it_can_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    async with staged(tmp_path, REPLIES, size=size) as stage:
        await stage.send("long")
        await stage.turn(2)
        kv = stage.deck.panels.kv
        await stage.screen()
        assert kv.region.height == min(kv.wanted_height(kv.size.width), 12)
        laid_out: list[bool] = []
        monkeypatch.setattr(kv, "refresh", lambda *_, layout=False, **__: laid_out.append(layout))
        await stage.turn(2)
        assert not any(laid_out)


MANY = 10  # chats, so many that their table has the lines of an empty chat


async def crowded(stage: Stage) -> None:
    """Open so many chats, and then an empty one."""
    for number in range(MANY):
        await stage.press("ctrl+n")
        await stage.send(f"question {number}")
        await stage.turn(1)
    await stage.press("ctrl+n")
    await stage.settle()


@pytest.mark.parametrize("size", [(80, 24), (100, 30), (120, 40), (160, 30), (160, 48), (200, 60)])
async def test_an_empty_chat_gives_its_room_to_the_table_of_many(
    size: tuple[int, int], tmp_path: Path
) -> None:
    async with staged(tmp_path, REPLIES, size=size) as stage:
        table, chat = stage.deck.panels.table, stage.deck.chat
        await crowded(stage)
        shown = table.region
        assert shown.height > chat.region.height
        assert shown.bottom <= chat.region.y
        assert chat.prompt.area.region.height >= 1
        text = await stage.screen()
        assert all(f"question {number}" in text for number in range(MANY))
        assert "Ask anything." in text
        # The first key gives the chat its lines again.
        await stage.press("h")
        await stage.settle()
        assert table.region.height < shown.height
        assert chat.prompt.area.region.bottom > shown.bottom


async def test_a_small_terminal_has_chat_strip_and_table(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(80, 24)) as stage:
        assert not stage.deck.panels.table.display, "one chat needs no table"
        for text in ("one", "two"):
            await stage.press("ctrl+n")
            await stage.send(text)
            await stage.finish()
        lines = (await stage.screen()).splitlines()
        assert "Chats 2" in lines[0]
        assert "▸   2   two" in "\n".join(lines[1:6])
        assert "The second reply." in "\n".join(lines[7:])
        assert "tok/s" in lines[-2]
        # The table follows the chat on view.
        await stage.press("alt+1")
        assert "▸   1   one" in await stage.screen()
        await stage.press("f2")
        assert not stage.deck.has_class("-table")


async def test_rows_out_of_view_are_counted(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(80, 24)) as stage:
        await crowded(stage)
        await stage.press("alt+1")
        stage.deck.panels.table.action_edge(-1)
        await stage.settle()
        assert f"+{MANY - 4} more" in (await stage.screen()).splitlines()[6]


async def test_zoom_is_in_the_key_bar(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(120, 40)) as stage:
        for panel in "1234567":
            await stage.press("f2", panel)
            await stage.bar("z Zoom")
            await stage.press("z")
            await stage.bar("z All panels")
            await stage.press("z", "f2")
