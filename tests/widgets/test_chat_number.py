from __future__ import annotations

from widgets.chat_number import ChatNumber


def test_letters_go_round() -> None:
    assert "".join(ChatNumber(n).letter for n in (1, 9, 10, 35, 36)) == "19az1"


def test_numbers_sort_and_read_as_numbers_and_are_no_ordinals() -> None:
    assert sorted(map(ChatNumber, (10, 2)))[0] == ChatNumber(2)
    assert str(ChatNumber(12)) == "12"
    assert ChatNumber(2) != 2


def test_chats_held_elsewhere_have_capital_letters_and_come_last() -> None:
    theirs = [ChatNumber(n, theirs=True) for n in (1, 2, 26, 27, 52, 53, 702, 703)]
    assert list(map(str, theirs)) == ["A", "B", "Z", "AA", "AZ", "BA", "ZZ", "AAA"]
    assert "".join(number.letter for number in theirs) == "ABZAZAZA"
    assert sorted((theirs[0], ChatNumber(40))) == [ChatNumber(40), theirs[0]]
    assert not {str(ChatNumber(n)) for n in range(1, 100)} & set(map(str, theirs))
