from __future__ import annotations

from app.process.columns import align, row


def test_a_table_is_as_wide_as_its_cells_and_numbers_stand_right() -> None:
    rows = [("name", "tok/s", ""), ("a longer one", "7", "?"), ("b", "1,024", "")]
    assert align(rows, numbers=(1,)) == [
        "name          tok/s",
        "a longer one      7  ?",
        "b             1,024",
    ]


def test_a_row_that_comes_alone_keeps_to_the_widths_of_its_table() -> None:
    widths = (-6, 7, 5)
    assert row(("model", "ours", "n"), widths) == "model     ours     n"
    assert row(("387m", "1234.5", "32"), widths) == "387m    1234.5    32"
    assert row(("387m",), widths) == "387m"
    assert row(("too long", "x"), widths) == "too long       x"
