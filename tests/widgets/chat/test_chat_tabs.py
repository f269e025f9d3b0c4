from __future__ import annotations

from textual import events

from tests.widgets.hosting import Host, hosted, rows, settle
from widgets.chat.chat_tabs import ChatTabs, Tab
from widgets.chat_number import ChatNumber
from widgets.glyphs import ASCII, UNICODE, Glyphs, Mark

TABS = (
    Tab("a", ChatNumber(1), "Kafka essay", Mark.DECODE),
    Tab("b", ChatNumber(2), "SQL help", Mark.PREFILL, unread=True),
    Tab("c", ChatNumber(3), "new chat"),
)
MANY = tuple(
    Tab(str(n), ChatNumber(n), f"Conversation number {n}", Mark.DECODE) for n in range(1, 21)
)


async def line(tabs: tuple[Tab, ...], current: str, width: int, glyphs: Glyphs = UNICODE) -> str:
    bar = ChatTabs(glyphs)
    async with hosted(bar, width, 1):
        bar.show(tabs, current)
        return rows(bar)[0]


async def click(app: Host, bar: ChatTabs, x: int) -> None:
    bar.post_message(events.Click(bar, x, 0, 0, 0, 1, False, False, False, screen_x=x, screen_y=0))
    await settle(app)


async def test_numbers_states_and_titles() -> None:
    assert (
        await line(TABS, "a", 60) == "▸1 ● Kafka essay   2 ◐ SQL help*  3 ○ new chat        + new"
    )
    assert await line(TABS, "c", 60, ASCII) == (
        " 1 * Kafka essay   2 % SQL help* >3 o new chat        + new"
    )


async def test_titles_give_way_before_tabs_do() -> None:
    whole = "▸1 ● Kafka essay   2 ◐ SQL help*  3 ○ new chat   + new"
    assert await line(TABS, "a", 55) == whole
    assert await line(TABS, "a", 54) == whole.replace("essay", "ess…")
    assert await line(TABS, "a", 51) == "▸1 ● Kafka essay   2 ◐ SQL help*  1>         + new"


async def test_what_does_not_fit_is_counted_at_both_sides_and_titles_stay_whole() -> None:
    for current in ("1", "10", "20"):
        text = await line(MANY, current, 80)
        assert f"▸{current} ● Conversation…" in text
        shown = text.count("●")
        assert shown == text.count("Conversation…") == 3
        first = int(text[1:].split()[0]) if text[0] == "<" else 0
        last = int(text.rpartition(">")[0].split()[-1]) if ">" in text else 0
        assert first + shown + last == 20
        assert text.endswith("+ new")


async def test_a_narrow_bar_shows_the_current_one() -> None:
    assert "▸7 ●" in await line(MANY, "7", 20)


async def test_clicks_pick_open_and_list() -> None:
    bar = ChatTabs()
    async with hosted(bar, 80, 1) as (app, _):
        bar.show(MANY, "2")
        await settle(app)
        text = rows(bar)[0]
        for part in (" 3 ●", "+ new", "17>"):
            await click(app, bar, text.index(part) + 1)
        assert [m.key for m in app.sent(ChatTabs.Picked)] == ["3"]
        assert len(app.sent(ChatTabs.NewWanted)) == 1
        assert len(app.sent(ChatTabs.MoreWanted)) == 1
