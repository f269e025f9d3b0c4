from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode
from textual.content import Content

from tests.widgets.hosting import hosted
from widgets.chat.transcript import Transcript
from widgets.chat.typeset import (
    CODE_STYLES,
    Document,
    Row,
    Typesetter,
    code_blocks,
    highlighted,
    wrap,
)
from widgets.glyphs import ASCII, UNICODE

SAMPLE = """\
# Title

A paragraph with *emphasis*, **strength**, `code` and a [link](https://example.org/x).
A second line of it.

- one
- two
  1. nested
  2. again

> quoted
> twice

| a | b |
|---|--:|
| 1 | 22 |

```python
def f(x):
    return x
```

---

The end.
"""


def content(row: Row) -> Content:
    """All of a row."""
    return row.lead + row.text + row.tail


def lines(markdown: str, width: int = 40, *, complete: bool = True) -> list[str]:
    document = Document(Typesetter(UNICODE), width)
    document.grow(markdown, complete=complete)
    return [content(row).plain.rstrip() for row in document.rows]


def styles(markdown: str) -> dict[str, str]:
    """Text by the name of its style."""
    document = Document(Typesetter(UNICODE), 60)
    document.grow(markdown, complete=True)
    return {
        row.text.plain[span.start : span.end]: span.style
        for row in document.rows
        for span in row.text.spans
        if isinstance(span.style, str)
    }


def copied(rows: list[Row]) -> str:
    return "".join((row.gap if i else "") + row.text.plain for i, row in enumerate(rows))


def test_blocks_stand_apart_by_one_blank() -> None:
    assert lines("# Title\ntext\n\nmore") == ["Title", "", "text", "", "more"]


def test_what_was_parsed_is_gone_at_once() -> None:
    gc.collect()
    gc.disable()
    try:
        document = Document(Typesetter(UNICODE), 60)
        document.grow(SAMPLE, complete=True)
        assert document.rows
        left = [o for o in gc.get_objects(generation=0) if isinstance(o, (SyntaxTreeNode, Token))]
    finally:
        gc.enable()
    assert left == []


def test_lines_of_a_verse_stay_lines() -> None:
    assert lines("roses are red\nviolets are blue") == ["roses are red", "violets are blue"]


def test_lists_are_indented_and_numbered_from_their_start() -> None:
    assert lines("- one\n- two\n  - deep") == ["• one", "• two", "  • deep"]
    assert lines("9. nine\n10. ten") == [" 9. nine", "10. ten"]
    assert lines("- one\n\n  more\n\n- two") == ["• one", "", "  more", "", "• two"]


def test_wrapped_lines_of_a_list_hang() -> None:
    assert lines("- one two three four", 12) == ["• one two", "  three four"]


def test_a_quote_has_its_bar_on_every_row() -> None:
    assert lines("> one two three four", 11) == ["▌ one two", "▌ three", "▌ four"]


def test_code_is_framed_named_and_kept_as_it_is() -> None:
    assert lines("```python\nif x:\n    y\n\nz\n```", 24) == [
        "╭ python ──────── copy ╮",
        "│ if x:                │",
        "│     y                │",
        "│                      │",
        "│ z                    │",
        "╰──────────────────────╯",
    ]


def test_long_code_lines_go_on_in_the_next_row_and_are_copied_whole() -> None:
    document = Document(Typesetter(UNICODE), 16)
    document.grow("```\n" + "x" * 30 + "\n```", complete=True)
    assert [row.text.plain for row in document.rows[1:-1]] == ["x" * 12, "x" * 12, "x" * 6]
    assert copied(document.rows[1:-1]) == "x" * 30


def test_an_open_code_block_is_plain_and_highlighted_when_it_closes() -> None:
    document = Document(Typesetter(UNICODE), 40)
    document.grow("```python\nreturn 1", complete=False)
    assert "copy" not in content(document.rows[0]).plain
    assert document.rows[1].text.spans == []
    document.grow("```python\nreturn 1\n```", complete=False)
    assert "copy" in content(document.rows[0]).plain
    assert ".keyword" in {span.style for span in document.rows[1].text.spans}


def test_a_stream_that_ends_inside_a_code_block_keeps_its_tail() -> None:
    document = Document(Typesetter(UNICODE), 40)
    document.grow("text\n\n```python\nx = 1\ny", complete=False)
    document.grow("text\n\n```python\nx = 1\ny = 2", complete=True)
    assert [row.text.plain for row in document.rows[-3:]] == ["x = 1", "y = 2", ""]


def test_inline_styles() -> None:
    found = styles("*em* **strong** ~~gone~~ `code` # no heading")
    assert found == {"em": ".em", "strong": ".strong", "gone": ".s", "code": ".code"}
    assert styles("## Two")["Two"] == ".h2"
    assert styles("##### Five")["Five"] == ".h3"


def test_a_link_says_where_it_leads() -> None:
    assert lines("[here](https://example.org) now") == ["here (https://example.org) now"]
    assert lines("https://example.org") == ["https://example.org"]
    assert lines("![alt](cat.png)") == ["[alt](cat.png)"]


def test_html_is_shown_and_not_swallowed() -> None:
    assert lines("<think>\nhm\n</think>\n\n<b>so</b>") == [
        "<think>",
        "hm",
        "</think>",
        "",
        "<b>so</b>",
    ]


def test_a_table_fits_the_width_and_aligns() -> None:
    assert lines("| a | b |\n|---|--:|\n| 1 | 22 |", 30) == ["a   │   b", "────┼────", "1   │  22"]
    wide = lines("| a | b |\n|---|---|\n| word word word | x |", 16)
    assert wide == [
        "a          │ b",
        "───────────┼────",
        "word word  │ x",
        "word       │",
    ]


def test_a_table_row_may_be_short() -> None:
    assert lines("| a | b |\n|---|---|\n| 1 |", 30)[-1].startswith("1")


def test_ascii_has_no_other_character() -> None:
    document = Document(Typesetter(ASCII), 40)
    document.grow(SAMPLE, complete=True)
    assert all(content(row).plain.isascii() for row in document.rows)


@pytest.mark.parametrize("size", [1, 3, 7, 50])
def test_text_in_fragments_is_set_as_in_one_piece(size: int) -> None:
    document = Document(Typesetter(UNICODE), 40)
    for end in range(size, len(SAMPLE), size):
        document.grow(SAMPLE[:end], complete=False)
    document.grow(SAMPLE, complete=False)
    assert [content(row) for row in document.rows] == [content(r) for r in whole(SAMPLE)]


def test_growing_sets_the_last_block_only() -> None:
    document = Document(Typesetter(UNICODE), 40)
    document.grow("one\n\ntwo\n\nthree", complete=False)
    before = list(document.rows)
    document.grow("one\n\ntwo\n\nthree and", complete=False)
    assert [a is b for a, b in zip(before, document.rows, strict=True)] == [True] * 3 + [False] * 2


def test_lines_are_counted_as_the_parser_counts_them() -> None:
    text = "a\u2028b\u2029c\x0cd\r\n\r\ntwo\x85too\r\rthree\n\nfour"
    document = Document(Typesetter(UNICODE), 40)
    for end in range(1, len(text) + 1):
        document.grow(text[:end], complete=False)
    assert list(map(content, document.rows)) == list(map(content, whole(text)))


def test_code_with_a_line_separator_in_it_is_closed_by_its_fence() -> None:
    assert " copy " in lines("```py\na = 1\u2028\x0c\n```")[0]


def test_a_later_definition_completes_an_earlier_link() -> None:
    text = "[here]\n\nmore\n\n[here]: https://example.org"
    document = Document(Typesetter(UNICODE), 60)
    document.grow(text[:8], complete=False)
    document.grow(text, complete=True)
    assert document.rows[0].text.plain == "here (https://example.org)"


def test_another_text_replaces_the_first() -> None:
    document = Document(Typesetter(UNICODE), 40)
    document.grow("one\n\ntwo", complete=False)
    document.grow("three", complete=False)
    assert [row.text.plain for row in document.rows] == ["three"]


WORDS = st.text(alphabet="ab 字\t-*`#|>[]()_~.1\n", max_size=120)


@given(WORDS, st.integers(8, 60))
def test_no_row_is_wider_than_asked_for(text: str, width: int) -> None:
    # Room for every mark that may indent what follows it.
    limit = width + 4 * sum(text.count(mark) for mark in ">-*1")
    document = Document(Typesetter(UNICODE), limit)
    document.grow(text, complete=True)
    tables = any("┼" in content(row).plain for row in document.rows)
    assert tables or all(content(row).cell_length <= limit for row in document.rows)


@given(st.text(alphabet="ab 字\n", max_size=80), st.integers(8, 30))
def test_wrapping_loses_nothing(text: str, width: int) -> None:
    rows = list(wrap(Content(text), width))
    assert all(row.text.cell_length <= width for row in rows)
    kept = [line.rstrip(" ") for line in copied(rows).split("\n")]
    assert kept == [line.rstrip(" ") for line in text.split("\n")]


def test_code_blocks() -> None:
    assert code_blocks("no code") == []
    assert code_blocks("```\na\n```\n\n- x\n  ```py\n  b\n  c\n  ```") == ["a", "b\nc"]


def whole(text: str) -> list[Row]:
    document = Document(Typesetter(UNICODE), 40)
    document.grow(text, complete=True)
    return document.rows


def test_code_that_grows_is_as_if_it_were_set_at_once() -> None:
    text = "Now:\n\n```python\ndef f():\n\treturn 'a long line that has to be folded'\n\n\nx = 1\n"
    typesetter = Typesetter(UNICODE)
    document = Document(typesetter, 30)
    for end in range(len(text) + 1):
        document.grow(text[:end], complete=False)
        at_once = Document(Typesetter(UNICODE), 30)
        at_once.grow(text[:end], complete=False)
        assert document.rows == at_once.rows
    kept = document.rows[4]
    document.grow(text + "y = 2", complete=False)
    assert document.rows[4] is kept  # lines that are whole are not set again


async def test_every_kind_of_code_has_a_style() -> None:
    transcript = Transcript()
    async with hosted(transcript, 60, 20):
        code = (
            "# a\n@d\ndef f(x: int = 1) -> str:\n    return not None or print('s', 1.5)\nclass A: ?"
        )
        styles = {span.style for span in highlighted(code, "python").spans} - {"$text"}
        assert styles >= {".comment", ".keyword", ".string", ".number", ".name", ".builtin"}
        for style in (*styles, *CODE_STYLES):
            assert isinstance(style, str)
            assert transcript.get_visual_style(f"transcript--{style[1:]}", partial=True)


def test_code_of_an_unknown_language_is_plain() -> None:
    assert {span.style for span in highlighted("x = 1", "nonsense").spans} == {"$text"}
