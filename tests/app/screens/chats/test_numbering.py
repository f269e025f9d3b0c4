from __future__ import annotations

from pathlib import Path

from app.screens.chats.numbering import Numbering
from engine.api.origin import Origin
from engine.api.snapshot import RequestView
from tests.app.screens.stage import staged
from tests.widgets.samples import view
from widgets.chat_number import ChatNumber


def asked(ordinal: int, conversation: str = "") -> RequestView:
    return view(ordinal, origin=Origin(conversation=conversation))


def numbers(numbering: Numbering, requests: list[RequestView], tabs: str) -> list[int]:
    numbering.look(requests, tabs)
    return [numbering.numbers[request.ordinal].value for request in requests]


def test_a_tab_has_the_number_of_its_place_whatever_was_asked_in_it() -> None:
    requests = [asked(1, "c"), asked(2, "b"), asked(3, "c")]
    numbering = Numbering()
    assert numbers(numbering, requests, "abc") == [3, 2, 3]
    assert numbers(numbering, requests, "bc") == [2, 1, 2]


def test_what_has_no_tab_has_a_number_of_its_own_for_as_long_as_it_is_shown() -> None:
    numbering = Numbering()
    assert numbers(numbering, [asked(1, "x"), asked(2, "a"), asked(3)], "a") == [10, 1, 11]
    assert numbers(numbering, [asked(3), asked(4, "y"), asked(5, "x")], "a") == [11, 12, 10]
    assert numbers(numbering, [asked(3), asked(4, "y"), asked(5, "x")], "ax") == [11, 12, 2]


def test_many_tabs_push_the_others_beyond_them() -> None:
    tabs = "abcdefghijk"
    assert numbers(Numbering(), [asked(1, "k"), asked(2, "x")], tabs) == [11, 12]
    numbering = Numbering()
    assert numbers(numbering, [asked(2, "x")], "a") == [10]
    assert numbers(numbering, [asked(2, "x")], tabs) == [12]


def test_a_request_that_is_not_shown_any_more_has_no_number() -> None:
    numbering = Numbering()
    numbering.look([asked(7, "a"), asked(8, "b"), asked(9, "a")], "ab")
    one, two = ChatNumber(1), ChatNumber(2)
    assert numbering.numbers == {7: one, 8: two, 9: one}
    numbering.look([asked(9, "a")], "ab")
    assert numbering.numbers == {9: one}


async def test_tab_row_and_map_agree_after_a_restart(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        for text in ("one", "two", "three"):
            await stage.press("ctrl+n")
            await stage.send(text)
            await stage.finish()
    async with staged(tmp_path, lambda _: "word " * 400, size=(160, 48)) as stage:
        await stage.press("alt+3")
        await stage.send("again")
        await stage.turn(3)
        assert stage.sessions.index == 2
        table = stage.deck.panels.table
        assert table.current is not None
        assert stage.deck.panels.numbering.numbers[table.current.ordinal] == ChatNumber(3)
        await stage.press("f2", "3")
        assert "used by session 3 (3)" in await stage.screen()
