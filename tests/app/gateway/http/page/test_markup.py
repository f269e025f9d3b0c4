"""Markdown as trees of elements, of which all tags, attributes and addresses are listed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from app.gateway.http.page import markup
from app.gateway.http.page.markup import CLASSES, LINK, TAGS, GrowingMarkup, Node, blocks, call
from tests.support.hostile_replies import REPLIES
from widgets.markdown import MAX_BRACKETS, MAX_PARAGRAPH

MARKDOWN = """\
# A *title*

Some **bold**, ~~old~~ and `code`,
on two lines, with [a link](https://a.example/x?y=1) and mail@a.org.

- one
- two
  1. three

| left | right | middle |
|---|--:|:-:|
| 1 | 2 | 3 |

> quoted

---

3. third

```python
x = 1  # one
```

![a cat](http://a.example/cat.png) ![b](data:image/png,x) [c](/live)
"""
TREE: list[Any] = [
    ["h1", {}, "A ", ["em", {}, "title"]],
    [
        "p",
        {},
        "Some ",
        ["strong", {}, "bold"],
        ", ",
        ["s", {}, "old"],
        " and ",
        ["code", {}, "code"],
        ",",
        ["br", {}],
        "on two lines, with ",
        ["a", {"href": "https://a.example/x?y=1"}, "a link"],
        " and ",
        ["a", {"href": "mailto:mail@a.org"}, "mail@a.org"],
        ".",
    ],
    ["ul", {}, ["li", {}, "one"], ["li", {}, "two", ["ol", {}, ["li", {}, "three"]]]],
    [
        "table",
        {},
        [
            "thead",
            {},
            [
                "tr",
                {},
                ["th", {}, "left"],
                ["th", {"class": "right"}, "right"],
                ["th", {"class": "center"}, "middle"],
            ],
        ],
        [
            "tbody",
            {},
            [
                "tr",
                {},
                ["td", {}, "1"],
                ["td", {"class": "right"}, "2"],
                ["td", {"class": "center"}, "3"],
            ],
        ],
    ],
    ["blockquote", {}, ["p", {}, "quoted"]],
    ["hr", {}],
    ["ol", {"start": "3"}, ["li", {}, "third"]],
    [
        "figure",
        {"class": "code"},
        ["figcaption", {}, "python"],
        [
            "pre",
            {},
            [
                "code",
                {},
                "x = ",
                ["span", {"class": "number"}, "1  "],
                ["span", {"class": "comment"}, "# one"],
            ],
        ],
    ],
    [
        "p",
        {},
        ["a", {"href": "http://a.example/cat.png", "class": "image"}, "a cat"],
        " ![b](data:image/png,x) ",
        "c",
        " (/live)",
    ],
]


def walk(nodes: list[Any], depth: int = 0) -> Iterator[tuple[Any, int]]:
    for node in nodes:
        yield node, depth
        if not isinstance(node, str):
            yield from walk(node[2:], depth + 1)


def text_of(nodes: list[Any]) -> str:
    return "".join(node for node, _ in walk(nodes) if isinstance(node, str))


def check(nodes: list[Any]) -> None:
    """All elements are of the lists, and none is deeper than allowed."""
    for node, depth in walk(nodes):
        if isinstance(node, str):
            continue
        tag, attributes = node[0], node[1]
        assert set(attributes) <= TAGS[tag], node
        assert attributes.get("class") in {None, *CLASSES}, node
        assert attributes.get("start", "1").isdecimal(), node
        assert depth <= markup.MAX_DEPTH + 3
        if tag == "a":
            assert LINK.fullmatch(attributes["href"]), node


def test_markdown_becomes_a_tree() -> None:
    assert blocks(MARKDOWN) == TREE


def test_there_are_many_hostile_replies() -> None:
    assert len(set(REPLIES)) == len(REPLIES) >= 120


@pytest.mark.parametrize("number", range(len(REPLIES)))
def test_a_hostile_reply_has_nothing_but_listed_elements(number: int) -> None:
    reply = REPLIES[number]
    began = time.process_time()
    tree = blocks(reply)
    growing = GrowingMarkup()
    for end in range(0, len(reply) + 1, max(1, len(reply) // 8)):
        final, last = growing.grow(reply[:end])
        check(final)
        check(last)
    assert time.process_time() - began < 5.0
    check(tree)
    check([call(reply, reply)])
    # HTML is no markup here: it can be read as it was written, but for the addresses of links.
    if "<script>" in reply and not reply.startswith(("```<", "[x](https:")):
        assert "<script>" in text_of(tree)


@pytest.mark.parametrize("size", [markup.MAX_MARKDOWN, 4 * markup.MAX_MARKDOWN])
@pytest.mark.parametrize(
    "unit", ["[", "![", "*a _b ", "<a ", "[a](", "` ``", "www.", "a.b ", "[a\n"]
)
def test_the_time_is_bounded(unit: str, size: int) -> None:
    text = unit * (size // len(unit))
    began = time.process_time()
    tree = blocks(text)
    assert time.process_time() - began < 8.0
    assert text_of(tree).replace(" ", "") == text.replace("\n", "").replace(" ", "")


def test_a_long_paragraph_stays_as_written() -> None:
    assert blocks(f"*x*{'a' * MAX_PARAGRAPH}\nb") == [
        ["p", {}, f"*x*{'a' * MAX_PARAGRAPH}", ["br", {}], "b"]
    ]
    assert blocks("[" * MAX_BRACKETS + "*x*")[0][-1] == ["em", {}, "x"]
    assert blocks("[" * (MAX_BRACKETS + 1) + "*x*") == [["p", {}, "[" * (MAX_BRACKETS + 1) + "*x*"]]


def test_what_is_too_deep_leaves_its_text() -> None:
    assert blocks("> " * 200 + "x") == [["p", {}, "> " * 200 + "x"]]
    deep = "**a *b " * 60 + "c" + "*d**" * 60
    assert text_of(blocks(deep)).count("a") == 60
    check(blocks(deep))


def test_characters_that_change_the_direction_are_left_out() -> None:
    assert blocks("a\u202eb\x1b[0m") == [["p", {}, "ab[0m"]]


def test_long_code_and_unknown_languages_have_no_colours() -> None:
    def code(text: str, language: str) -> list[Any]:
        figure: Any = blocks(f"```{language}\n{text}\n```")[0]
        return list(figure[3][2][2:])

    assert code("x = 1", "python") == ["x = ", ["span", {"class": "number"}, "1"]]
    assert code("x = 1", "befunge") == ["x = 1"]
    long = "x = 1\n" * (markup.MAX_COLOURED // 6 + 1)
    assert code(long, "python") == [long]
    assert code("", "python") == []


def test_a_growing_text_is_as_the_complete_one() -> None:
    shown: list[Node] = []
    growing = GrowingMarkup()
    sizes = []
    for end in range(0, len(MARKDOWN) + 1):
        final, last = growing.grow(MARKDOWN[:end])
        shown += final
        sizes.append(len(last))
    assert [*shown, *last] == TREE
    assert max(sizes) == 1


def test_a_large_growing_text_ends_as_plain_text() -> None:
    growing = GrowingMarkup()
    line = "*word* " * 20 + "\n\n"
    shown: list[Any] = []
    count = markup.MAX_MARKDOWN // len(line) + 20
    for number in range(0, count, 10):
        final, last = growing.grow(line * (number + 10))
        shown += final
    whole = [*shown, *last]
    assert text_of(whole).count("word") == 20 * (number + 10)
    assert ["em", {}, "word"] in whole[0]
    assert whole[-1] == ["p", {}, ("*word* " * 20)]


def test_a_call_shows_its_arguments() -> None:
    made: Any = call("look", '{"a":[1]}')
    assert made[:2] == ["figure", {"class": "call"}]
    assert made[2] == ["figcaption", {}, "look"]
    assert text_of([made[3]]) == '{\n  "a": [\n    1\n  ]\n}'
    assert text_of([call("look", "{broken")]) == "look{broken"
