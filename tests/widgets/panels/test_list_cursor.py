from __future__ import annotations

from widgets.panels.list_cursor import ListCursor


def cursor(items: str, start: int = 0) -> ListCursor[str]:
    made: ListCursor[str] = ListCursor(str.casefold, start)
    made.items = items
    return made


def test_it_goes_as_far_as_the_items_go() -> None:
    at = cursor("abc")
    assert (at.place, at.item) == (0, "a")
    assert at.go_to(1)
    assert at.go_to(9)
    assert (at.place, at.item) == (2, "c")
    assert not at.go_to(2)
    assert at.go_to(-9)
    assert at.item == "a"


def test_it_stays_with_its_item_and_comes_back_to_it() -> None:
    at = cursor("abc")
    at.go_to(1)
    at.items = "cAB"
    assert (at.place, at.item) == (2, "B")
    at.items = "ca"
    assert at.item == "c"
    at.items = "cab"
    assert at.item == "b"


def test_of_nothing_there_is_no_item_and_nothing_is_lost() -> None:
    at = cursor("abc")
    at.go_to(2)
    at.items = ""
    assert at.item is None
    assert not at.go_to(0)
    at.items = "abc"
    assert at.item == "c"


def test_it_may_be_on_none() -> None:
    at = cursor("abc", start=-1)
    assert (at.place, at.item) == (-1, None)
    assert at.go_to(0)
    assert at.go_to(at.place - 5)
    assert at.item is None
