from __future__ import annotations

from dataclasses import replace

import pytest
from textual.geometry import Region

from engine.api.block_map import BlockMap, PinView, Sharing
from tests.widgets.hosting import hosted, press, rows, settle
from tests.widgets.samples import NUMBERS
from widgets.chat_number import ChatNumber
from widgets.glyphs import ASCII, UNICODE
from widgets.panels.kv_map import SELECTED, KvMap

POOL = BlockMap(
    num_blocks=40,
    blocks_per_cell=1,
    states="uuuu" + "sss" + "cc" + "ff" + "u" + "u" * 8 + "f" * 20,
    owners=(1, 1, 12, -1, 1, 1, 1, -1, -1, -1, -1, 36, *(2,) * 8, *(-1,) * 20),
    free=22,
    cached=2,
    used=16,
    shared=3,
)


async def test_blocks_with_owner_letters_and_shares() -> None:
    kv = KvMap()
    async with hosted(kv, 80, 5):
        kv.show(POOL, NUMBERS, 16)
        assert rows(kv) == [
            "╭─ KV 40 blk×16 · used 40% · shared 8% · cached 5% · free 55% ─────────────────╮",
            "│ 11c?###~~··122222222····················                                     │",
            "│                                                                              │",
            "│ 1-9a-z owner  # shared  ~ cached  · free                                     │",
            "╰──────────────────────────────────────────────────────────────────────────────╯",
        ]


async def test_how_much_of_the_host_pool_is_used() -> None:
    kv = KvMap()
    async with hosted(kv, 80, 5):
        kv.show(replace(POOL, host_blocks=50, host_used=4), NUMBERS, 16)
        assert "· free 55% · host 8% ─" in rows(kv)[0]


async def test_how_many_states_of_prefixes_are_kept() -> None:
    kv = KvMap()
    async with hosted(kv, 80, 5):
        kv.show(replace(POOL, snapshots=16, snapshots_kept=3), NUMBERS, 16)
        assert "· free 55% · states 3/16 ─" in rows(kv)[0]


RESERVING = BlockMap(
    num_blocks=20,
    blocks_per_cell=1,
    states="ss" + "uu" + "rrrr" + "pp" + "c" + "f" * 9,
    owners=(4, 4, 4, 4, 4, 4, 12, -1, *(-1,) * 12),
    free=9,
    cached=3,
    used=8,
    shared=2,
    reserved=4,
    pinned=2,
)


async def test_reserved_and_pinned_blocks_are_states_of_their_own() -> None:
    for glyphs, cells in ((UNICODE, "##44░░░?◆◆~·········"), (ASCII, "##44___?==~.........")):
        kv = KvMap(glyphs)
        async with hosted(kv, 120, 5):
            kv.show(RESERVING, NUMBERS, 16, waste=0.62)
            assert rows(kv)[1][2:22] == cells
            shares = "reserved 20% · shared 10% · cached 15% · pinned 10% · free 45% "
            assert glyphs.fit(f" used 40% · waste 62% · {shares}") in rows(kv)[0]
            assert f"{glyphs.reserved} reserved  # shared  ~ cached  " in rows(kv)[-2]
            assert f"{glyphs.pinned} pinned  " in rows(kv)[-2]
            # A reserved block has its session's colour.
            owned = [s for s in kv.render_line(1) if s.style == kv.palette.owner(ChatNumber(4))]
            assert "".join(s.text for s in owned) == cells[2:6]


async def test_a_reserved_block_is_inspected_and_brought_out() -> None:
    kv = KvMap()
    async with hosted(kv, 60, 5, focus=True) as (app, _):
        kv.show(RESERVING, NUMBERS)
        kv.select(ChatNumber(12))
        assert [s.text for s in kv.render_line(1) if s.style and s.style.reverse] == ["#", "░"]
        await press(app, *("right",) * 6)
        assert rows(kv)[-2][2:].startswith("block 6 · reserved and not yet used by session 12 (c)")
        await press(app, "right", "right")
        assert rows(kv)[-2][2:].startswith("block 8 · pinned: held by nobody, never evicted")


async def test_who_shares_what_and_what_is_pinned() -> None:
    kv = KvMap()
    sharing = (Sharing((4, 7, 9), 3), Sharing((1, 2), 1))
    pins = (PinView("system", 90, 5, 4), PinView("long", 9000, 562, 0, "it does not fit"))
    async with hosted(kv, 76, 7, focus=True) as (app, _):
        kv.show(RESERVING, NUMBERS, sharing=sharing)
        lines = rows(kv)
        assert lines[-3][2:-2].rstrip() == "block 0 · shared by sessions 4, 7, 9"
        assert lines[-2][2:-2].rstrip() == "3 blk shared by 4, 7, 9 · 1 blk shared by 1, 2"
        # A session of two groups: which of them holds the block is not known.
        kv.show(RESERVING, NUMBERS, sharing=(*sharing, Sharing((4, 5), 1)))
        assert rows(kv)[-3][2:-2].rstrip() == "block 0 · shared, first held by session 4 (4)"
        kv.show(RESERVING, NUMBERS, sharing=sharing, pins=pins)
        assert rows(kv)[-2][2:-2].rstrip() == (
            "pin long failed: it does not fit · pin system 4/5 blk in the pool"
        )
        assert any(s.style == kv.palette.warn for s in kv.render_line(5))
        app.set_focus(None)
        await settle(app)
        assert "reserved" in rows(kv)[-3]


async def test_holders_whose_session_is_not_shown_are_counted() -> None:
    kv = KvMap()
    numbers = {4: ChatNumber(1), 7: ChatNumber(2), 9: ChatNumber(1)}
    sharing = (Sharing((4, 5, 7, 9), 3), Sharing((5, 12), 2))
    async with hosted(kv, 76, 7, focus=True) as (app, _):
        kv.show(RESERVING, numbers, sharing=sharing)
        assert rows(kv)[-2][2:-2].rstrip() == (
            "3 blk shared by 1, 2 and 1 other · 2 blk shared by 2 others"
        )
        assert rows(kv)[-3][2:-2].rstrip() == "block 0 · shared by sessions 1, 2 and 1 other"
        await press(app, *("right",) * 6)  # held by 12
        assert rows(kv)[1][2:10] == "##11░░??"
        assert rows(kv)[-3][2:-2].rstrip() == "block 6 · reserved and not yet used"


async def test_a_larger_cell_says_how_many_blocks_it_is() -> None:
    kv = KvMap(ASCII)
    async with hosted(kv, 90, 5):
        kv.show(replace(POOL, num_blocks=160, blocks_per_cell=4), NUMBERS)
        assert rows(kv)[0].startswith("+- KV 160 blk - used 10% - ")
        assert "- 1 cell = 4 blk" in rows(kv)[0]
        assert rows(kv)[1][2:].startswith("11c?###~~..122222222....")


async def test_a_small_panel_merges_cells() -> None:
    kv = KvMap()
    async with hosted(kv, 20, 5):
        kv.show(POOL, NUMBERS, 16)
        assert rows(kv)[1:3] == ["│ 1c##~12222······ │", "│ ····             │"]


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ((), "block 0 · used by session 1 (1)"),
        (("right", "right"), "block 2 · used by session 12 (c)"),
        (("right", "right", "right"), "block 3 · used"),
        (("down",), "block 16 · used by session 2 (2)"),
        (("down", "up"), "block 0 · used by session 1 (1)"),
        (("right",) * 4, "block 4 · shared, first held by session 1 (1)"),
        (("right",) * 7, "block 7 · cached, evictable"),
        (("end",), "block 39 · free"),
        (("end", "right", "left", "left"), "block 37 · free"),
        (("right", "up", "left", "left"), "block 0 · used by session 1 (1)"),
        (("end", "home"), "block 0 · used by session 1 (1)"),
    ],
)
async def test_keys_inspect_a_block(keys: tuple[str, ...], text: str) -> None:
    kv = KvMap()
    async with hosted(kv, 20, 8, focus=True) as (app, _):
        kv.show(POOL, NUMBERS, 16)
        for key in keys:
            await press(app, key)
        assert text.startswith(rows(kv)[-2][2:-2].rstrip(" …"))
        assert kv._inspected(POOL) == text


async def test_a_merged_cell_names_its_range() -> None:
    kv = KvMap()
    async with hosted(kv, 20, 5, focus=True) as (app, _):
        kv.show(replace(POOL, num_blocks=39), NUMBERS)
        await press(app, "right")
        assert rows(kv)[-2][2:-2].rstrip() == "blocks 2..3 · u…"
        await press(app, "end")
        assert rows(kv)[-2][2:-2].rstrip() == "block 38 · free"


async def test_a_click_inspects_a_block() -> None:
    kv = KvMap()
    async with hosted(kv, 60, 6, focus=True) as (_, pilot):
        kv.show(POOL, NUMBERS)
        await pilot.click(KvMap, offset=(4, 1))
        assert kv.cursor == 2
        await pilot.click(KvMap, offset=(4, 2))  # beyond the last block
        assert kv.cursor == 2


async def test_the_selected_session_stands_out_without_colour() -> None:
    kv = KvMap()
    async with hosted(kv, 60, 6):
        kv.show(POOL, NUMBERS)
        kv.select(ChatNumber(12))
        assert [s.text for s in kv.render_line(1) if s.style and s.style.reverse] == ["c"]
        assert SELECTED.reverse
        kv.select(None)
        assert not any(s.style and s.style.reverse for s in kv.render_line(1))


async def test_one_block_more_repaints_one_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    kv = KvMap()
    async with hosted(kv, 60, 6):
        kv.show(POOL, NUMBERS)
        repainted: list[Region] = []
        monkeypatch.setattr(kv, "refresh", lambda *regions: repainted.extend(regions))
        states = POOL.states[:30] + "c" + POOL.states[31:]
        kv.show(replace(POOL, states=states), NUMBERS)
        assert repainted == [Region(2 + 20, 1, 20, 1)]  # the run of free blocks that it cuts
