from __future__ import annotations

import pytest

from engine.api.origin import Origin
from tests.widgets.hosting import burst, hosted, lay_out, paste, press, rows, screen, settle
from tests.widgets.samples import GOODPUT, chats, view, views, waiting
from widgets.chat_number import ChatName, ChatNumber
from widgets.figures import duration
from widgets.glyphs import ASCII, UNICODE
from widgets.panels.chat_row import YOU, ChatRow
from widgets.panels.session_table import SessionTable


def ids(table: SessionTable) -> list[int]:
    """Ordinals of the rows, from top to bottom."""
    return [row.view.ordinal for row in table._cursor.items if row.view]


async def test_every_state_in_figures_and_words() -> None:
    table = SessionTable()
    async with hosted(table, 77, 16):
        table.show(chats(views()))
        assert rows(table) == [
            "╭─ Chats 12 · / filter · s sort: state ▲ ───────────────────────────────────╮",
            "│   ID    title              state       queue  TTFT  TPOT   p99   tok  blk │",
            "│ ▸   1   Kafka essay        ● decode    2.0ms 184ms  21ms  39ms    47   54 │",
            "│     4   @fleet bot-7       ● decode    2.0ms 203ms  22ms  40ms   310   70 │",
            "│     8   東京の天気         ● decode    2.0ms 610ms  48ms 220ms    47   54 │",
            "│     9   A very long title… ● decode ⇄2 2.0ms 184ms  21ms  39ms    47   54 │",
            "│    11 b Roman roads        ● decode    2.0ms 3.20s 310ms  39ms   13k   54 │",
            "│     2   SQL help           ◐ prefill    41ms     –     –     –     0    9 │",
            "│     6   Haiku              ⇄ preempted 120ms the pool just ran out of bl… │",
            "│    12 c @alice bot-9       ◌ queued    612ms no blocks: it needs 51, 12…  │",
            "│    13 d Translate          ◌ queued    1.20s behind 2 others              │",
            "│     7   Rust borrow        ✓ done      2.0ms 151ms  20ms  33ms   402    – │",
            "│     5   Stopped one        ■ stopped   2.0ms 184ms  21ms  39ms    47    – │",
            "│     3   @fleet bot-3       ✗ error     3.0ms the logits of this request…  │",
            "│                                                                           │",
            "╰─ 1 Kafka essay · prompt 812, 64 cached · output 47/512 · 54 blk ──────────╯",
        ]


async def test_a_wide_table_says_why_beside_the_figures() -> None:
    table = SessionTable()
    async with hosted(table, 150, 16):
        table.show(chats(views()))
        lines = rows(table)
        assert "377ms  35ms 210ms    88    – the pool just ran out of blocks" in lines[8]
        assert lines[9].endswith("no blocks: it needs 51, 12 of 2048 are free for it  │")


async def test_the_foot_says_in_full_what_the_row_cuts_off() -> None:
    table = SessionTable()
    async with hosted(table, 120, 16, focus=True) as (app, _):
        table.show(chats(views()))
        await press(app, "end", "up", "up", "up", "up")
        assert rows(table)[-2][2:-2].rstrip() == (
            "no blocks: it needs 51, 12 of 2048 are free for it"
        )
        assert rows(table)[-1].startswith("┗━ 12 @alice bot-9 · prompt 812, ")
        await press(app, "up")
        assert rows(table)[-2][2:-2].rstrip() == "the pool just ran out of blocks"
        assert "· 7 blk swapped · preempted 1×" in rows(table)[-1]


async def test_what_of_the_blocks_is_shared_or_reserved() -> None:
    table = SessionTable()
    async with hosted(table, 165, 6):
        table.show(chats([view(1, shared_blocks=3, reserved_blocks=20)]))
        assert rows(table)[1].split()[-4:-1] == ["blk", "shrd", "resv"]
        assert rows(table)[2].split()[-4:-1] == ["54", "3", "20"]
        assert "· 54 blk, 3 shared, 20 reserved" in rows(table)[-1]


@pytest.mark.parametrize(
    ("ttft", "tpot", "styles"),
    [(0.45, 0.05, "text text"), (0.46, 0.04, "bad text"), (0.3, 0.051, "text bad")],
)
async def test_figures_above_their_targets_are_marked(
    ttft: float, tpot: float, styles: str
) -> None:
    table = SessionTable()
    async with hosted(table, 90, 6):
        table.show(chats([view(1, ttft=0.1), view(2, ttft=ttft, tpot=tpot)]), GOODPUT)
        line = list(table.render_line(3))
        found = [s.style for s in line if s.text.strip() in (duration(ttft), duration(tpot))]
        assert found == [getattr(table.palette, name) for name in styles.split()]


async def test_sorting_by_each_column_in_turn() -> None:
    table = SessionTable()
    async with hosted(table, 200, 8, focus=True) as (app, _):
        fast = view(
            1,
            origin=Origin(title="b", source="mqtt"),
            ttft=0.1,
            tpot=0.03,
            queue=0.3,
            shared_blocks=2,
        )
        slow = view(2, origin=Origin(title="C"), ttft=0.9, tpot=0.01, queue=0.1)
        new = waiting(3, 0.2, "it is next", origin=Origin(title="a"))
        table.show(chats([slow, fast, new]))
        orders = {table.sort: ids(table)}
        for _ in range(11):
            await press(app, "s")
            orders[table.sort] = ids(table)
        assert orders == {
            "state": [2, 1, 3],
            "ID": [1, 2, 3],
            "title": [1, 3, 2],
            "src": [1, 2, 3],
            "queue": [2, 3, 1],
            "TTFT": [1, 2, 3],
            "TPOT": [2, 1, 3],
            "p99": [2, 1, 3],
            "tok": [3, 2, 1],
            "blk": [2, 1, 3],
            "shrd": [1, 2, 3],
            "resv": [2, 1, 3],
        }
        await press(app, "s")
        assert table.sort == "state"


async def test_it_is_sorted_by_columns_that_are_seen() -> None:
    table = SessionTable()
    async with hosted(table, 60, 8, focus=True) as (app, _):
        table.show(chats([view(1), view(2)]))
        sorts = [table.sort]
        while sorts.count("state") < 2:
            await press(app, "s")
            sorts.append(table.sort)
        assert sorts[1:-1] == [head for head in rows(table)[1].split()[1:-1] if head != "state"]


async def test_the_other_direction_leaves_unknown_figures_last() -> None:
    table = SessionTable()
    async with hosted(table, 90, 8, focus=True) as (app, _):
        table.show(chats([waiting(3, 0.2, ""), view(1, ttft=0.1), view(2, ttft=0.9)]))
        for _ in range(5):
            await press(app, "s")
        await press(app, "S")
        assert (table.sort, ids(table)) == ("TTFT", [2, 1, 3])
        assert "s sort: TTFT ▼" in rows(table)[0]


async def test_sorting_keeps_the_cursor_in_view() -> None:
    table = SessionTable()
    async with hosted(table, 80, 8, focus=True) as (app, _):
        table.show(chats([view(n) for n in range(1, 31)]))
        await press(app, "down", "S")
        assert rows(table)[6][2:8] == "▸   2 "


async def test_new_figures_do_not_scroll() -> None:
    table = SessionTable()
    async with hosted(table, 80, 8, focus=True):
        table.show(chats([view(n) for n in range(1, 31)]))
        table.scroll(10)
        table.show(chats([view(n, output_tokens=48) for n in range(1, 31)]))
        assert table.first == 10


async def test_a_click_on_a_head_sorts_and_again_turns_round() -> None:
    table = SessionTable()
    async with hosted(table, 90, 8, focus=True) as (_, pilot):
        table.show(chats([view(2), view(1)]))
        await pilot.click(SessionTable, offset=(5, 1))
        assert (table.sort, ids(table)) == ("ID", [1, 2])
        await pilot.click(SessionTable, offset=(5, 1))
        assert (table.sort, ids(table)) == ("ID", [2, 1])


async def test_the_cursor_tells_where_it_went_and_enter_chooses() -> None:
    table = SessionTable()
    async with hosted(table, 80, 16, focus=True) as (app, _):
        table.show(chats(views()))
        await press(app, "down", "down", "up", "enter")
        went = [(m.row.key, m.row.name.number.value) for m in app.sent(SessionTable.Highlighted)]
        assert went == [("req-4", 4), ("req-8", 8), ("req-4", 4)]
        assert [m.row.key for m in app.sent(SessionTable.Selected)] == ["req-4"]
        await press(app, "home", "up")
        assert table.current is not None
        assert table.current.key == "req-1"


async def test_a_click_chooses_a_row() -> None:
    table = SessionTable()
    async with hosted(table, 80, 16, focus=True) as (app, pilot):
        table.show(chats(views()))
        await pilot.click(SessionTable, offset=(10, 4))
        assert [m.row.key for m in app.sent(SessionTable.Selected)] == ["req-8"]
        await pilot.click(SessionTable, offset=(10, 14))  # below the last row
        assert len(app.sent(SessionTable.Selected)) == 1


async def test_the_cursor_stays_with_its_request() -> None:
    table = SessionTable()
    async with hosted(table, 80, 8, focus=True) as (app, _):
        table.show(chats([view(1), view(2), view(3)]))
        await press(app, "down")
        table.show(chats([view(3), view(1), view(2)]))
        assert table.cursor == 2
        assert rows(table)[4][2] == "▸"
        table.show(chats([view(3), view(1)]))
        assert table.cursor == 0
        assert len(app.sent(SessionTable.Highlighted)) == 1


async def test_long_tables_scroll_with_the_cursor() -> None:
    table = SessionTable()
    async with hosted(table, 80, 8, focus=True) as (app, _):
        table.show(chats([view(n) for n in range(1, 31)]))
        assert table.page == 5
        await press(app, "end")
        assert rows(table)[6][2:8] == "▸  30 "
        assert [line[-1] for line in rows(table)] == list("┓┃┃┃┃┃█┛")
        await press(app, "pageup")
        assert table.cursor == 25
        table.show(chats([view(1)]))
        assert rows(table)[2][2:8] == "▸   1 "


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("mqtt", [4, 12, 3]),
        ("MQTT queued", [12]),
        ("req-6", []),  # what no eye sees
        ("#6", [6]),
        ("#1", [1]),
        ("you queued", [13]),
        ("天気", [8]),
        ("fleet", [4, 3]),
        ("", [1, 4, 8, 9, 11, 2, 6, 12, 13, 7, 5, 3]),
    ],
)
async def test_the_filter_looks_for_every_word(text: str, found: list[int]) -> None:
    table = SessionTable()
    async with hosted(table, 80, 16):
        table.show(chats(views()))
        table.set_filter(text)
        assert ids(table) == found


async def test_typing_a_filter() -> None:
    table = SessionTable()
    async with hosted(table, 80, 16, focus=True) as (app, _):
        table.show(chats(views()))
        await press(app, "slash", *"ssqx", "backspace")
        assert (table.filter, table.sort) == ("ssq", "state")  # s is text here and no binding
        assert rows(table)[0].startswith("┏━ Chats 0 of 12 · / ssq_ · ")
        assert rows(table)[2][2:-2].rstrip() == "No chat matches 'ssq'; esc shows all."
        await press(app, *("backspace",) * 2, *"ql", "enter", "s")
        assert (table.filter, ids(table), table.sort) == ("sql", [2], "ID")
        await press(app, "slash", "escape")
        assert (table.filter, len(ids(table))) == ("", 12)


async def test_a_filter_is_pasted_and_edited_in_the_middle() -> None:
    table = SessionTable()
    async with hosted(table, 80, 16, focus=True) as (app, _):
        table.show(chats(views()))
        await press(app, "slash", "s")
        await paste(app, "\r\nql\x1b 天\nsecond line")
        assert table.filter == "sql 天"
        await press(app, "left", "backspace", "home", "delete", "S", "end", "backspace")
        assert (table.filter, ids(table)) == ("Sql", [2])
        assert table.has_focus_within
        await lay_out(app)
        assert screen(app)[0].startswith("┏━ Chats 1 of 12 · / Sql  · s sort")
        await press(app, "enter", "down")
        assert table.has_focus
        assert (table.filter, ids(table)) == ("Sql", [2])


async def test_keys_that_come_in_one_go_keep_their_order() -> None:
    table = SessionTable()
    async with hosted(table, 80, 16, focus=True) as (app, _):
        table.show(chats(views()))
        await press(app, "slash")
        await burst(app, "x", "backspace", "s", "q", "l", "enter", "s")
        assert (table.filter, table.sort) == ("sql", "ID")


async def test_a_narrow_table_shows_the_end_of_what_is_typed() -> None:
    table = SessionTable()
    async with hosted(table, 40, 8, focus=True) as (app, _):
        table.show(chats(views()))
        await press(app, "slash", *"abcdefghijklmnop")
        await lay_out(app)
        assert screen(app)[0] == "┏━ Chats 0 of 12 · / abcdefghijklmnop  ┓"


async def test_leaving_the_table_ends_the_typing() -> None:
    table = SessionTable()
    async with hosted(table, 80, 16, focus=True) as (app, _):
        table.show(chats(views()))
        await press(app, "slash", "s")
        app.set_focus(None)
        await settle(app)
        table.focus()
        await press(app, "s")
        assert (table.filter, table.sort) == ("s", "ID")


async def test_hostile_titles_stay_text() -> None:
    table = SessionTable()
    async with hosted(table, 80, 6):
        origin = Origin(user="me", title="\x1b[31m[b]x\n", source="\x07mqtt")
        table.show(chats([view(1, origin=origin)]))
        line = rows(table)[2]
        assert "\x1b" not in line
        assert "@me  [31m[b" in line
        assert rows(table)[-1].startswith("╰─ 1 @me  [31m[b]x  · prompt 812")


async def test_who_goes_first_and_who_else_asked_stand_before_the_title() -> None:
    for glyphs, marks in ((UNICODE, ("▲3 ", "▼12 ")), (ASCII, ("^3 ", "v12 "))):
        table = SessionTable(glyphs)
        async with hosted(table, 110, 8, focus=True) as (app, _):
            alice = Origin(user="alice", source="mqtt", title="bot")
            table.show(chats([view(1, priority=3, origin=alice), view(2, priority=-12), view(3)]))
            titles = [row[10:26].rstrip() for row in rows(table)[2:5]]
            assert titles == [f"{marks[0]}@alice bot", f"{marks[1]}Chat 2", "Chat 3"]
            assert "1 @alice bot" in rows(table)[-1]
            assert "priority 3" in rows(table)[-1]
            await press(app, "end")
            assert "priority" not in rows(table)[-1]


async def test_chats_without_a_request_are_rows_too() -> None:
    """Review, 11: after a restart the table said that no request had come, of 20 chats."""
    table = SessionTable()
    idle = ChatRow("k", ChatName(ChatNumber(12), "Question 1"), YOU)
    async with hosted(table, 77, 6, focus=True) as (app, _):
        table.show([idle, ChatRow("m", ChatName(ChatNumber(2, theirs=True), "@bob Ulm"), "mqtt")])
        assert rows(table)[0].startswith("┏━ Chats 1 + 1 elsewhere · ")
        # The letter of the map stands beside the number where it is another sign.
        head = [line[:44].split() for line in rows(table)[2:4]]
        assert head[0] == ["┃", "▸", "12", "c", "Question", "1", "○", "idle"]
        assert head[1] == ["┃", "B", "@bob", "Ulm", "○", "idle"]
        assert "12 Question 1 · no recent request" in rows(table)[-1]
        await press(app, "enter")
        assert [m.row for m in app.sent(SessionTable.Selected)] == [idle]


async def test_the_filter_finds_the_one_that_is_meant() -> None:
    """Review, 3: of eight chats "Question 1..8", `question 3` kept seven, by hidden ids."""
    table = SessionTable()
    asked = [
        view(n, request_id=f"{n}3f3{n}", origin=Origin(title=f"Question {n}")) for n in range(1, 9)
    ]
    async with hosted(table, 80, 16, focus=True) as (app, _):
        table.show(chats(asked))
        await press(app, "slash", *"question", "space", "3", "enter")
        assert ids(table) == [3]


async def test_esc_takes_an_accepted_filter_away() -> None:
    """Review, 3."""
    table = SessionTable()
    async with hosted(table, 80, 16, focus=True) as (app, _):
        table.show(chats(views()))
        await press(app, "slash", *"sql", "enter")
        assert len(ids(table)) == 1
        await press(app, "escape")
        assert (table.filter, len(ids(table))) == ("", 12)
        assert table.has_focus


async def test_a_long_reason_is_wrapped_and_read_in_full() -> None:
    """Review, 9."""
    table = SessionTable()
    why = "no blocks: it needs 51, 0 of 2,048 are free for it; 3 others wait before it"
    async with hosted(table, 50, 12, focus=True):
        table.show(chats([waiting(1, 0.6, why)]))
        assert " ".join(line[2:-2].strip() for line in rows(table)[-3:-1]) == why
