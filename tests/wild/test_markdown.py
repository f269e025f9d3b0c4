"""Markdown as models write it: what is nested deeply is seen, on a narrow screen too."""

from __future__ import annotations

import pytest
from markdown_it import MarkdownIt

from widgets.chat.typeset import MAX_NESTING, Document, Typesetter
from widgets.glyphs import ASCII, UNICODE


def shown(markdown: str, width: int, *, complete: bool = True) -> str:
    document = Document(Typesetter(UNICODE), width)
    document.grow(markdown, complete=complete)
    rows = [row.lead + row.text + row.tail for row in document.rows]
    assert all(row.cell_length <= width for row in rows)
    return "\n".join(row.plain for row in rows)


def listed(depth: int, mark: str = "-") -> str:
    step = " " * (len(mark) + 1)
    return "\n".join(f"{step * level}{mark} level{level}" for level in range(depth))


def quoted(depth: int) -> str:
    return "\n\n".join(f"{'>' * level} level{level - 1}" for level in range(1, depth + 1))


# (report, depth, Markdown)
CASES = [
    *(("Automattic/simplenote-macos#1069", depth, listed(depth)) for depth in (7, 10, 11, 49)),
    *(("", depth, listed(depth, "1.")) for depth in (10, 30)),
    *(("", depth, quoted(depth)) for depth in (20, 21, 60, 99)),
    *(("", depth, quoted(depth)) for depth in (MAX_NESTING, 3 * MAX_NESTING)),
    ("", 60, listed(60)),
    ("", 400, ">" * 399 + " level399\n"),
]


@pytest.mark.parametrize("width", [24, 80, 200])
@pytest.mark.parametrize("number", range(len(CASES)))
def test_the_deepest_level_is_seen(number: int, width: int) -> None:
    _, depth, markdown = CASES[number]
    for complete in (True, False):
        assert f"level{depth - 1}" in shown(markdown, width, complete=complete)


def test_levels_are_those_of_the_peer() -> None:
    """All that markdown-it makes of it without a bound is set."""
    markdown = listed(30) + "\n\n" + quoted(40)
    peer = MarkdownIt("gfm-like", {"html": False, "maxNesting": 10_000})
    words = [token.content for token in peer.parse(markdown) if token.type == "inline"]
    text = shown(markdown, 200)
    assert len(words) == 70
    assert [word for word in words if word not in text] == []


def test_signs_are_left_out_where_there_is_no_room() -> None:
    document = Document(Typesetter(ASCII), 12)
    document.grow(listed(4), complete=True)
    assert [(row.lead + row.text).plain for row in document.rows] == [
        *("* level0", "  * level1", "    level2", "    level3"),
    ]
