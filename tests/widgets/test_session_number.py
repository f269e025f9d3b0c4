from __future__ import annotations

from widgets.session_number import SessionNumber


def test_letters_go_round() -> None:
    assert "".join(SessionNumber(n).letter for n in (1, 9, 10, 35, 36)) == "19az1"


def test_numbers_sort_and_read_as_numbers_and_are_no_ordinals() -> None:
    assert sorted(map(SessionNumber, (10, 2)))[0] == SessionNumber(2)
    assert str(SessionNumber(12)) == "12"
    assert SessionNumber(2) != 2
