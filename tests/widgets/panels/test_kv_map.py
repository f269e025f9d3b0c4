from __future__ import annotations

from dataclasses import replace

import pytest
from textual.geometry import Region

from engine.api.block_map import BlockMap, BlockState, BlockView, PinView, Sharing
from tests.widgets.hosting import hosted, press, rows, settle
from tests.widgets.pools import pool_of
from tests.widgets.samples import NAMES
from widgets.chat_number import ChatName, ChatNumber
from widgets.glyphs import ASCII, UNICODE
from widgets.panels.kv_map import SELECTED, KvMap

# 123 is a request whose chat is not known.
POOL = pool_of(
    ("u", (1,), 2),
    ("u", (12,), 1),
    ("u", (123,), 1),
    ("s", (1, 5), 3),
    ("c", (), 2),
    ("f", (), 2),
    ("u", (36,), 1),
    ("u", (2,), 8),
    ("f", (), 57),
)


def inspected(kv: KvMap) -> str:
    return " · ".join(kv._inspected())


async def test_blocks_with_owner_letters_and_shares() -> None:
    kv = KvMap()
    async with hosted(kv, 80, 5):
        kv.show(POOL, NAMES, 16)
        assert rows(kv) == [
            "╭─ KV 77 blk×16 · used 21% · shared 4% · cached 3% · free 77% ─────────────────╮",
            "│ 11c?###~~··122222222························································ │",
            "│ ·                                                                            │",
            "│ 1-9a-z chat  # shared  ~ cached  · free                                      │",
            "╰──────────────────────────────────────────────────────────────────────────────╯",
        ]


async def test_how_much_of_the_host_pool_is_used() -> None:
    kv = KvMap()
    async with hosted(kv, 80, 5):
        kv.show(replace(POOL, host_blocks=50, host_used=4), NAMES, 16)
        assert "· free 77% · host 8% ─" in rows(kv)[0]


async def test_how_many_states_of_prefixes_are_kept() -> None:
    kv = KvMap()
    async with hosted(kv, 80, 5):
        kv.show(replace(POOL, snapshots=16, snapshots_kept=3), NAMES, 16)
        assert "· free 77% · states 3/16 ─" in rows(kv)[0]


RESERVING = pool_of(
    ("s", (4, 7, 9), 2),
    ("u", (4,), 2),
    ("r", (4,), 2),
    ("r", (12,), 1),
    ("r", (123,), 1),
    ("p", (), 2),
    ("c", (), 1),
    ("f", (), 119),
)


async def test_reserved_and_pinned_blocks_are_states_of_their_own() -> None:
    for glyphs, cells in ((UNICODE, "##44░░░?◆◆~·········"), (ASCII, "##44___?==~.........")):
        kv = KvMap(glyphs)
        async with hosted(kv, 120, 4):
            kv.show(RESERVING, NAMES, 16, waste=0.62)
            assert rows(kv)[1][2:22] == cells
            shares = "reserved 3% · shared 2% · cached 2% · pinned 2% · free 92% "
            assert glyphs.fit(f" used 6% · waste 62% · {shares}") in rows(kv)[0]
            # A reserved block has its chat's colour.
            owned = [s for s in kv.render_line(1) if s.style == kv.palette.owner(ChatNumber(4))]
            assert "".join(s.text for s in owned) == cells[2:6]
        async with hosted(kv := KvMap(glyphs), 120, 6):
            kv.show(RESERVING, NAMES, 16)
            assert f"{glyphs.reserved} reserved  # shared  ~ cached  " in rows(kv)[-2]
            assert f"{glyphs.pinned} pinned  " in rows(kv)[-2]


async def test_a_reserved_block_is_inspected_and_brought_out() -> None:
    kv = KvMap()
    async with hosted(kv, 82, 5, focus=True) as (app, _):
        kv.show(RESERVING, NAMES)
        kv.select(ChatNumber(12))
        assert [s.text for s in kv.render_line(1) if s.style and s.style.reverse] == ["#", "░"]
        await press(app, *("right",) * 6)
        assert rows(kv)[-2][2:].startswith("block 6 · reserved and not yet used by 12 Chat 12")
        await press(app, "right", "right")
        assert rows(kv)[-2][2:].startswith("block 8 · pinned: held by nobody, never evicted")


async def test_the_blocks_of_a_chat_stand_out_those_that_it_shares_too() -> None:
    kv = KvMap()
    async with hosted(kv, 82, 5):
        kv.show(RESERVING, NAMES)
        kv.select(ChatNumber(9))
        assert [s.text for s in kv.render_line(1) if s.style and s.style.reverse] == ["##"]
        assert SELECTED.reverse  # also without colours
        kv.select(ChatNumber(4))
        marked = [s.text for s in kv.render_line(1) if s.style and s.style.reverse]
        assert "".join(marked) == "##44░░"
        kv.select(None)
        assert not any(s.style and s.style.reverse for s in kv.render_line(1))


async def test_who_shares_what_and_what_is_pinned() -> None:
    kv = KvMap()
    sharing = (Sharing((4, 7, 9), 3), Sharing((1, 2), 1))
    pins = (PinView("system", 90, 5, 4), PinView("long", 9000, 562, 0, "it does not fit"))
    async with hosted(kv, 82, 7, focus=True) as (app, _):
        kv.show(RESERVING, NAMES, sharing=sharing)
        lines = rows(kv)
        assert lines[-3][2:-2].rstrip() == "block 0 · shared by 4 Chat 4, 7 Chat 7, 9 Chat 9"
        assert lines[-2][2:-2].rstrip() == "", "what is said below a block is of that block"
        app.set_focus(None)
        await settle(app)
        assert "reserved" in rows(kv)[-3]
        assert rows(kv)[-2][2:-2].rstrip() == "3 blk shared by 4 Chat 4, 7 Chat 7, 9 Chat 9"
        kv.show(RESERVING, NAMES, sharing=sharing, pins=pins)
        assert rows(kv)[-2][2:-2].rstrip() == (
            "pin long failed: it does not fit · pin system 4/5 blk in the pool"
        )
        assert any(s.style == kv.palette.warn for s in kv.render_line(5))


async def test_holders_whose_chat_is_not_shown_are_counted() -> None:
    kv = KvMap()
    one, two = ChatName(ChatNumber(1), "Rome"), ChatName(ChatNumber(2), "Ulm")
    names = {4: one, 7: two, 9: one}
    sharing = (Sharing((4, 5, 7, 9), 3), Sharing((5, 12), 2))
    async with hosted(kv, 82, 7, focus=True) as (app, _):
        kv.show(RESERVING, names, sharing=sharing)
        assert rows(kv)[-3][2:-2].rstrip() == "block 0 · shared by 1 Rome, 2 Ulm"
        await press(app, *("right",) * 6)  # held by 12
        assert rows(kv)[1][2:10] == "##11░░??"
        assert rows(kv)[-3][2:-2].rstrip() == "block 6 · reserved and not yet used by 1 other"
        app.set_focus(None)
        await settle(app)
        assert rows(kv)[-2][2:-2].rstrip() == (
            "3 blk shared by 1 Rome, 2 Ulm and 1 other · 2 blk shared by 2 others"
        )


async def test_chats_held_elsewhere_have_capital_letters() -> None:
    kv = KvMap()
    names = {4: ChatName(ChatNumber(1), "Rome"), 12: ChatName(ChatNumber(2, True), "@bob Ulm")}
    async with hosted(kv, 82, 5, focus=True) as (app, _):
        kv.show(RESERVING, names)
        await press(app, *("right",) * 6)
        assert rows(kv)[-2][2:].startswith("block 6 · reserved and not yet used by B @bob Ulm")
        app.set_focus(None)
        await settle(app)
        assert rows(kv)[-2][2:].startswith("1-9a-z chat  A-Z chat held elsewhere  ")


async def test_a_sign_of_two_letters_is_written_whole_where_there_is_room() -> None:
    names = {1: ChatName(ChatNumber(28, True), "@bob Ulm"), 2: ChatName(ChatNumber(12), "Rome")}
    pool = pool_of(("u", (1,), 2), ("u", (2,), 1), ("f", (), 3))
    for width, cells in ((52, "ABABAB  ABABAB  ccccccc"), (16, "AB  AB  ccc"), (7, "B B c")):
        kv = KvMap()
        async with hosted(kv, width, 4):
            kv.show(pool, names)
            assert cells in "\n".join(rows(kv)), rows(kv)


async def test_few_blocks_of_a_large_pool_are_seen_and_named() -> None:
    """Review, 2: sparse blocks vanished behind the most frequent state of a cell."""
    kv = KvMap()
    pool = pool_of(("f", (), 3), ("u", (1,), 1), ("p", (), 1), ("f", (), 90_000), ("s", (2, 5), 1))
    async with hosted(kv, 60, 5, focus=True) as (app, _):
        kv.show(pool, NAMES, 16)
        assert rows(kv)[1][2:-2].count("1") == 1
        assert rows(kv)[1][2:-2].startswith("·1◆···")
        assert "· a cell ≤ 1,024 blk" in kv.title()
        await press(app, "right")
        assert rows(kv)[-2][2:-2].rstrip() == "block 3 · used by 1 Chat 1"
        await press(app, "left")
        assert rows(kv)[-2][2:-2].rstrip() == "blocks 0..2 · free"
        await press(app, "end")
        assert rows(kv)[-2][2:-2].rstrip() == "block 90005 · shared by 2 Chat 2, 5 Chat 5"


@pytest.mark.parametrize(("glyphs", "cells"), [(UNICODE, "▄▄"), (ASCII, "++")])
async def test_a_cell_of_several_states_shows_its_share(glyphs: object, cells: str) -> None:
    kv = KvMap(UNICODE if glyphs is UNICODE else ASCII)
    runs = [("u", (1,), 1), ("c", (), 2), ("u", (2,), 1), ("f", (), 1)] * 2
    async with hosted(kv, 2, 2, focus=True):
        kv.show(pool_of(*runs), NAMES)
        assert rows(kv)[1] == cells
        said = "blocks 0..4 · 40% used · 40% cached · 20% free · held by 1 Chat 1, 2 Chat 2"
        assert inspected(kv) == said


async def test_a_small_pool_is_drawn_large() -> None:
    """Review, 2: a pool of 64 blocks took one line of ten."""
    kv = KvMap()
    pool = pool_of(("u", (1,), 2), ("f", (), 62))
    async with hosted(kv, 84, 10, focus=True) as (_, pilot):
        kv.show(pool, NAMES, 16)
        assert rows(kv)[1][2:26] == "1111111 1111111 ·       "
        assert [bool(line[2:-2].strip()) for line in rows(kv)[1:-2]] == [True] * 7
        assert kv.wanted_height(84) == 2 + 6 + 1
        await pilot.click(KvMap, offset=(2 + 9, 1))
        assert kv.cursor == 1


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ((), "block 0 · used by 1 Chat 1"),
        (("right", "right"), "block 2 · used by 12 Chat 12"),
        (("right", "right", "right"), "block 3 · used by 1 other"),
        (("down",), "block 16 · used by 2 Chat 2"),
        (("down", "up"), "block 0 · used by 1 Chat 1"),
        (("right",) * 4, "block 4 · shared by 1 Chat 1, 5 Chat 5"),
        (("right",) * 7, "block 7 · cached, evictable"),
        (("end",), "block 76 · free"),
        (("end", "right", "left", "left"), "block 74 · free"),
        (("right", "up", "left", "left"), "block 0 · used by 1 Chat 1"),
        (("end", "home"), "block 0 · used by 1 Chat 1"),
    ],
)
async def test_keys_inspect_a_block(keys: tuple[str, ...], text: str) -> None:
    kv = KvMap()
    async with hosted(kv, 20, 8, focus=True) as (app, _):
        kv.show(POOL, NAMES, 16)
        for key in keys:
            await press(app, key)
        assert text.startswith(rows(kv)[-2][2:-2].rstrip(" …"))
        assert inspected(kv) == text


async def test_the_cursor_stays_on_its_block_while_the_pool_changes() -> None:
    kv = KvMap()
    async with hosted(kv, 60, 4, focus=True) as (app, _):
        kv.show(pool_of(("f", (), 500), ("u", (1,), 5), ("f", (), 495)), NAMES)
        while "used" not in inspected(kv):
            await press(app, "right")
        assert inspected(kv) == "blocks 500..504 · used by 1 Chat 1"
        kv.show(pool_of(*[("c", (), 1), ("f", (), 9)] * 3, ("f", (), 470), ("u", (1,), 5)), NAMES)
        assert inspected(kv) == "blocks 500..504 · used by 1 Chat 1"


async def test_a_click_inspects_a_block() -> None:
    kv = KvMap()
    async with hosted(kv, 81, 4, focus=True) as (_, pilot):
        kv.show(POOL, NAMES)
        await pilot.click(KvMap, offset=(4, 1))
        assert kv.cursor == 2
        await pilot.click(KvMap, offset=(4, 2))  # beyond the last block
        assert kv.cursor == 2


async def test_one_block_more_repaints_one_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    kv = KvMap()
    runs = [(s.state, s.holders, s.blocks) for s in POOL.segments]
    async with hosted(kv, 81, 4):
        kv.show(POOL, NAMES)
        repainted: list[Region] = []
        monkeypatch.setattr(kv, "refresh", lambda *regions: repainted.extend(regions))
        kv.show(same_sums(pool_of(*runs[:-1], ("f", (), 10), ("c", (), 1), ("f", (), 46))), NAMES)
        assert repainted == [Region(2 + 20, 1, 57, 1)]  # the run of free blocks that it cuts


def same_sums(blocks: BlockMap) -> BlockMap:
    return replace(blocks, free=POOL.free, cached=POOL.cached, used=POOL.used)


async def test_what_a_block_holds_is_cut_with_an_ellipsis_whatever_stands_in_it() -> None:
    kv = KvMap()
    view = BlockView(0, BlockState.USED, 3.2, (1,), 0, tuple(range(16)), "a\nb\n" * 20, "a1f0")
    async with hosted(kv, 62, 7, focus=True):
        kv.show(POOL, NAMES, detail=view)
        said = rows(kv)[-2][2:-2].rstrip()
        assert said.startswith("hash a1f0 · “a b a b a b")
        assert said.endswith("a b…")


async def test_slots_that_nobody_uses_are_no_waste_once_nothing_is_used() -> None:
    kv = KvMap()
    async with hosted(kv, 82, 5):
        kv.show(replace(POOL, used=0), NAMES, waste=0.99)
        assert "waste" not in rows(kv)[0]


async def test_what_the_picked_block_holds() -> None:
    kv = KvMap()
    ids, text = tuple(range(16)), " Roman\nroads"
    view = BlockView(4, BlockState.SHARED, 3.2, (1, 5), 32, ids, text, "a1f0")
    async with hosted(kv, 82, 7, focus=True) as (app, _):
        kv.show(POOL, NAMES)
        assert kv.wanted == 0
        await press(app, *("right",) * 4)
        assert kv.wanted == 4
        kv.show(POOL, NAMES, detail=view)
        assert rows(kv)[-3][2:-2].rstrip() == (
            "block 4 · shared by 1 Chat 1, 5 Chat 5 · for 3s · held 2× · tok 32..47"
        )
        assert rows(kv)[-2][2:-2].rstrip() == "hash a1f0 · “ Roman roads”"
        kv.show(pool_of(("f", (), 4), ("c", (), 1), ("f", (), 9)), NAMES)  # it was let go since
        assert rows(kv)[-3][2:-2].rstrip() == "block 4 · cached, evictable"
        assert rows(kv)[-2][2:-2].rstrip() == ""
        kv.show(POOL, NAMES)
        await press(app, "right")  # of that one nothing is known yet
        assert "hash" not in "".join(rows(kv))
        app.set_focus(None)
        await settle(app)
        assert kv.wanted is None


async def test_of_a_cell_of_several_blocks_it_is_said_which_one_is_meant() -> None:
    kv = KvMap()
    view = BlockView(0, BlockState.USED, 3.2, (1,), 0, (5, 6), "Rome", "a1f0")
    async with hosted(kv, 44, 4, focus=True):
        kv.show(pool_of(("u", (1,), 500), ("f", (), 9000)), NAMES, detail=view)
        assert inspected(kv).partition(" · used by 1 Chat 1 · ")[2] == (
            "block 0 · for 3s · held 1× · tok 0..1 · hash a1f0 · “Rome”"
        )
