from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.style import Style

from widgets.glyphs import ASCII, UNICODE
from widgets.line import Line, shorten, shorten_parts

PLAIN = Style.null()
texts = st.text(max_size=30) | st.text("ab 東京é\x1b", max_size=30)


def text_of(line: Line) -> str:
    return "".join(segment.text for segment in line.segments)


@given(st.integers(0, 40), st.lists(texts), st.sampled_from([UNICODE, ASCII]))
def test_a_line_is_never_too_long(width: int, pieces: list[str], glyphs: object) -> None:
    line = Line(width, glyphs)  # type: ignore[arg-type]  # sampled_from loses the type
    for piece in pieces:
        line.add(piece, PLAIN)
    assert cell_len(text_of(line)) == width - line.room
    assert cell_len(text_of(line.pad(PLAIN))) == width


@given(texts, st.integers(0, 20), st.sampled_from(["left", "right"]))
def test_a_cell_is_as_wide_as_asked(text: str, width: int, align: str) -> None:
    line = Line(40, UNICODE).cell(text, width, PLAIN, align)  # type: ignore[arg-type]
    assert cell_len(text_of(line)) == width


@given(texts, st.integers(0, 20))
def test_shortened_text_fits(text: str, width: int) -> None:
    text = UNICODE.fit(text)
    short = shorten(text, width)
    assert cell_len(short) <= width
    assert short == text or width == 0 or short.endswith("…")


def test_what_was_cut_before_is_cut_with_one_ellipsis() -> None:
    once = shorten("system: a long one", 12)
    assert [shorten(once + " · more", width) for width in (13, 12)] == ["system: a l…"] * 2


@given(st.lists(texts, min_size=1, max_size=5), st.integers(0, 40))
def test_parts_that_do_not_fit_are_left_out_whole(parts: list[str], width: int) -> None:
    parts = [UNICODE.fit(part).replace("·", "") for part in parts]
    short = shorten_parts(" · ".join(parts), width)
    assert cell_len(short) <= width
    kept = short.split(" · ")
    assert kept == parts[: len(kept)] or kept == [shorten(parts[0], width)]


def test_cells_align_and_end_in_an_ellipsis() -> None:
    line = Line(20, UNICODE).cell("abc", 5, PLAIN).cell("12", 5, PLAIN, "right")
    line.cell("a title", 6, PLAIN).cell("東京の", 4, PLAIN)
    assert text_of(line) == "abc     12a tit…東… "


def test_ascii_ellipsis() -> None:
    assert text_of(Line(9, ASCII).cell("a long title", 6, PLAIN)) == "a lon~"
