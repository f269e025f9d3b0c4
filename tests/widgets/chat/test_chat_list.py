from __future__ import annotations

from dataclasses import replace

import pytest

from tests.widgets.hosting import hosted, press, rows, settle
from widgets.chat.chat_list import ChatList, ChatRow
from widgets.chat_number import ChatNumber
from widgets.glyphs import ASCII, UNICODE, Mark

KEYS = [str(n) for n in range(1000)]


def row(key: str) -> ChatRow:
    number = ChatNumber(int(key) + 1)
    return ChatRow(f"Chat {key}", number, Mark.DECODE, key == "1", "model", "3h", True)


async def test_a_chat_takes_two_lines_if_all_fit_so() -> None:
    view = ChatList()
    async with hosted(view, 30, 6):

        def titled(key: str) -> ChatRow:
            long = "How were Roman roads drained then?"
            return replace(row(key), title=long) if key == "2" else row(key)

        view.show(KEYS[:3], titled, "0")
        assert rows(view) == [
            "▸  1 ● Chat 0",
            "       model               3h",
            "   2 ● Chat 1               *",
            "       model               3h",
            "   3 ● How were Roman roads",
            "       drained then?       3h",
        ]


async def test_of_many_chats_each_takes_one_line_and_the_rest_is_counted() -> None:
    view = ChatList()
    async with hosted(view, 30, 4) as (app, _):
        view.show(KEYS, row, "0")
        assert rows(view) == [
            "▸  1 ● Chat 0              3h",
            "   2 ● Chat 1          *   3h",
            "   3 ● Chat 2              3h",
            "       +997 more",
        ]
        view.focus()
        await press(app, "end")
        await settle(app)
        assert rows(view)[2:] == [" 10… ● Chat 999            3h", ""]


async def test_a_pinned_chat_of_many_has_its_sign_before_the_title() -> None:
    view = ChatList()
    async with hosted(view, 30, 4):
        view.show(KEYS, lambda key: replace(row(key), is_pinned=key == "0"), "0")
        assert rows(view)[0] == "▸  1 ●◆Chat 0              3h"


async def test_a_pinned_chat_has_a_sign_below_its_state() -> None:
    for glyphs, sign in ((UNICODE, "◆"), (ASCII, "=")):
        view = ChatList(glyphs)
        async with hosted(view, 30, 4):
            view.show(KEYS[:2], lambda key: replace(row(key), is_pinned=key == "0"), "0")
            state = glyphs.marks[Mark.DECODE]
            assert [line[5] for line in rows(view)] == [state, sign, state, " "]


async def test_in_ascii() -> None:
    view = ChatList(ASCII)
    async with hosted(view, 20, 2):
        view.show(KEYS, lambda _key: ChatRow("Éa", None), "x")
        assert rows(view)[0] == "     o ?a"


async def test_only_what_is_in_view_is_asked_for() -> None:
    asked: list[str] = []

    def noted(key: str) -> ChatRow:
        asked.append(key)
        return row(key)

    view = ChatList()
    async with hosted(view, 30, 10):
        view.show(KEYS, noted, "0")
        assert set(asked) == set(KEYS[:9])


async def test_it_is_drawn_when_a_chat_in_view_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was drawn ten times a second while any reply streamed."""
    view, ages = ChatList(), {"1": "3h", "9": "3h"}
    async with hosted(view, 30, 4):

        def aged(key: str) -> ChatRow:
            return replace(row(key), age=ages.get(key, "3h"))

        drawn: list[None] = []
        view.show(KEYS, aged, "0")
        monkeypatch.setattr(view, "redraw", lambda: drawn.append(None))
        ages["9"] = "4h"
        view.show(KEYS, aged, "0")
        assert not drawn
        ages["1"] = "4h"
        view.show(KEYS, aged, "0")
        assert len(drawn) == 1


async def test_the_cursor_scrolls_and_opens() -> None:
    view = ChatList()
    async with hosted(view, 30, 10) as (app, _):
        view.show(KEYS, row, "0")
        view.focus()
        await press(app, "end")
        await settle(app)
        assert "Chat 999" in rows(view)[8]
        await press(app, "up", "enter")
        await settle(app)
        assert [m.key for m in app.sent(ChatList.Picked)] == ["998"]
        view.show(KEYS, row, "5")
        assert view.cursor == "5"
        assert any("▸  6" in line for line in rows(view))
