"""Markup: Markdown as trees of elements, from which the page makes its nodes.

A tree has no HTML: a text is a string, and an element is a list of its tag, its attributes and its
children. Both this module and the page (`reply.js`) make only the tags and attributes listed here,
so nothing that a model or a user writes can become another element, a style or a script.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import TypeAlias

from markdown_it.token import Token
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from widgets.harmless import HARMFUL
from widgets.markdown import (
    CODE_KINDS,
    MAX_NESTING,
    TAB_SIZE,
    language_of,
    lines_of,
    markdown_parser,
)

Node: TypeAlias = "str | list[str | dict[str, str] | Node]"

# The attributes that each element may have.
TAGS: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        ("p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "li", "blockquote", "hr", "br"), frozenset()
    ),
    **dict.fromkeys(("strong", "em", "s", "table", "thead", "tbody", "tr"), frozenset()),
    **dict.fromkeys(("pre", "code", "figcaption"), frozenset()),
    "ol": frozenset({"start"}),
    "th": frozenset({"class"}),
    "td": frozenset({"class"}),
    "figure": frozenset({"class"}),
    "span": frozenset({"class"}),
    "a": frozenset({"href", "class"}),
}
CLASSES = frozenset({*CODE_KINDS.values(), "center", "right", "code", "call", "image"})
LINK = re.compile(r"(?:https?://|mailto:)[^\s\x00-\x20\x7f-\x9f]+", re.IGNORECASE | re.ASCII)

# Elements within elements; deeper ones leave their text.
MAX_DEPTH = 40
# A text is Markdown as far as this, which takes up to 2 s; the rest of a longer one is plain text.
MAX_MARKDOWN = 1 << 16
MAX_HREF = 2048
# Longer code, and code with a longer line, is not coloured.
MAX_COLOURED = 1 << 14
MAX_CODE_LINE = 400
# Only these have colours: a lexer is a set of regular expressions, and a model picks it.
# fmt: off
LANGUAGES = frozenset((
    "bash", "c", "c++", "cpp", "cs", "csharp", "css", "diff", "docker", "dockerfile", "go",
    "golang", "graphql", "haskell", "html", "ini", "java", "javascript", "js", "json", "jsx",
    "julia", "kotlin", "lua", "make", "makefile", "markdown", "md", "nginx", "objective-c",
    "ocaml", "perl", "php", "powershell", "proto", "py", "python", "r", "rb", "ruby", "rs",
    "rust", "scala", "sh", "shell", "sql", "swift", "toml", "ts", "tsx", "typescript", "xml",
    "yaml", "yml", "zig", "zsh",
))
# fmt: on


def blocks(text: str) -> list[Node]:
    """The blocks of a complete text."""
    text = HARMFUL.sub("", text)
    if len(text) <= MAX_MARKDOWN:
        return _markdown(text)[0]
    end = text.rfind("\n", 0, MAX_MARKDOWN) + 1 or MAX_MARKDOWN
    return [*_markdown(text[:end])[0], *_plain(text[end:])]


def call(name: str, arguments: str) -> Node:
    """A tool call with its arguments, which are JSON if the model wrote it without a mistake."""
    try:
        shown = json.dumps(json.loads(arguments), ensure_ascii=False, indent=2)
    except (ValueError, RecursionError):
        shown = arguments
    code = _coloured(HARMFUL.sub("", shown), "json")
    caption: Node = ["figcaption", {}, HARMFUL.sub("", name)]
    return ["figure", {"class": "call"}, caption, ["pre", {}, ["code", {}, *code]]]


class GrowingMarkup:
    """The blocks of a growing text. Its last block is open, and changes with the text; the blocks
    before it are final until the text is complete, when later lines may have changed them (link
    references, loose lists).
    """

    def __init__(self) -> None:
        self._text = ""
        self._start = 0  # of the open block

    def grow(self, text: str) -> tuple[list[Node], list[Node]]:
        """Read more of the text.

        Returns:
            the blocks that have become final, and the open one; as several if it is plain text.
        """
        text = HARMFUL.sub("", text)
        assert text.startswith(self._text)
        self._text = text
        source = text[self._start :]
        if self._start + len(source) > MAX_MARKDOWN:
            # Its lines are appended from here on, as they are complete.
            end = source.rfind("\n") + 1
            final = _plain(source[:end]) if end else []
            self._start += end
            return final, _plain(source[end:])
        found, last = _markdown(source)
        if last:
            self._start += sum(map(len, lines_of(source)[:last]))
        return found[:-1], found[-1:]


def _markdown(source: str) -> tuple[list[Node], int]:
    """The blocks of a text, and the line at which the last one begins."""
    tokens = markdown_parser().parse(source)
    if any(one.level >= MAX_NESTING - 1 for one in tokens):
        return _plain(source), 0  # The parser drops what is nested deeper.
    starts = [one.map[0] for one in tokens if one.level == 0 and one.map and one.nesting >= 0]
    builder = _Builder()
    builder.add(tokens)
    return builder.root, starts[-1] if starts else 0


def _plain(text: str) -> list[Node]:
    """A text that is not read as Markdown, in paragraphs."""
    return [["p", {}, *_broken(part)] for part in re.split(r"\n{2,}", text) if part.strip()]


def _broken(text: str) -> Iterable[Node]:
    for number, line in enumerate(text.strip("\n").split("\n")):
        if number:
            yield ["br", {}]
        if line:
            yield line


class _Builder:
    """Makes elements of tokens. It goes through them without recursion, because emphasis can be
    nested as deep as a text is long.

    Attributes:
        root: the blocks.
    """

    _INLINE = ("em", "strong", "s")
    _BLOCKS = ("blockquote", "bullet_list", "list_item", "thead", "tbody", "table", "tr", "heading")

    def __init__(self) -> None:
        self.root: list[Node] = []
        self._open: list[list[Node]] = [self.root]
        self._address = ""  # of a link that cannot be followed; links are not nested

    def add(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            if token.children is not None and token.type == "inline":
                self.add(token.children)
            elif token.nesting > 0:
                self._begin(token)
            elif token.nesting < 0:
                self._open.pop()
                if token.type == "link_close" and self._address:
                    self._open[-1].append(self._address)
                    self._address = ""
            else:
                self._leaf(token)

    def _begin(self, token: Token) -> None:
        kind = token.type.removesuffix("_open")
        if token.hidden:
            self._open.append(self._open[-1])
        elif kind in self._INLINE or kind in self._BLOCKS or kind == "paragraph":
            self._element(token.tag, {})
        elif kind == "ordered_list":
            start = str(token.attrs.get("start", 1))
            self._element("ol", {} if start == "1" else {"start": start})
        elif kind in ("th", "td"):
            style = str(token.attrs.get("style", ""))
            side = next((one for one in ("center", "right") if one in style), "")
            self._element(kind, {"class": side} if side else {})
        elif kind == "link" and (href := _address(token, "href")):
            self._element("a", {"href": href})
        elif kind == "link":
            # Its address is shown behind its text, and cannot be followed.
            self._open.append(self._open[-1])
            self._address = f" ({token.attrs.get('href', '')})"
        else:
            self._open.append(self._open[-1])

    def _element(self, tag: str, attributes: dict[str, str]) -> None:
        if len(self._open) > MAX_DEPTH:
            self._open.append(self._open[-1])
            return
        made: list[Node] = [tag, attributes]  # type: ignore[list-item]
        self._open[-1].append(made)  # type: ignore[arg-type]
        self._open.append(made)

    def _leaf(self, token: Token) -> None:
        match token.type:
            case "fence" | "code_block":
                self._open[-1].append(_code(token))
            case "hr":
                self._open[-1].append(["hr", {}])
            case "softbreak" | "hardbreak":
                # Models break lines on purpose, as in verses and addresses.
                self._open[-1].append(["br", {}])
            case "code_inline":
                self._open[-1].append(["code", {}, token.content])
            case "image" if href := _address(token, "src"):
                shown = token.content or "image"
                self._open[-1].append(["a", {"href": href, "class": "image"}, shown])
            case "image":
                self._open[-1].append(f"[{token.content}]({token.attrs.get('src', '')})")
            case _ if token.content:
                self._open[-1].extend(_broken(token.content))


def _address(token: Token, name: str) -> str:
    """The address of a link if it is one that may be followed; else empty."""
    address = str(token.attrs.get(name, ""))
    return address if len(address) <= MAX_HREF and LINK.fullmatch(address) else ""


def _code(token: Token) -> Node:
    language = language_of(token.info)
    caption: Node = ["figcaption", {}, language[:40]]
    shown = _coloured(token.content.removesuffix("\n"), language.lower())
    return ["figure", {"class": "code"}, caption, ["pre", {}, ["code", {}, *shown]]]


@lru_cache(maxsize=128)
def _coloured(code: str, language: str) -> tuple[Node, ...]:
    """Code in pieces of one kind; a single piece if the language is unknown."""
    is_short = len(code) <= MAX_COLOURED and all(
        len(line) <= MAX_CODE_LINE for line in code.splitlines()
    )
    lexer = _lexer(language) if is_short and language in LANGUAGES else None
    if lexer is None:
        return (code,) if code else ()
    pieces: list[tuple[str, list[str]]] = []
    for kind, text in lexer.get_tokens(code):
        name = _kind(kind)
        if pieces and (pieces[-1][0] == name or not text.strip()):
            pieces[-1][1].append(text)
        else:
            pieces.append((name, [text]))
    joined = [(name, "".join(texts)) for name, texts in pieces]
    if joined:
        # Lexers add a line end.
        joined[-1] = joined[-1][0], joined[-1][1].removesuffix("\n")
    return tuple(["span", {"class": name}, text] if name else text for name, text in joined if text)


@cache
def _lexer(language: str) -> Lexer | None:
    try:
        return get_lexer_by_name(language, stripnl=False, ensurenl=True, tabsize=TAB_SIZE)
    except ClassNotFound:
        return None


@cache
def _kind(token: tuple[str, ...]) -> str:
    """The kind of a token; empty if it has none."""
    for length in range(len(token), 0, -1):
        if name := CODE_KINDS.get(token[:length]):
            return name
    return ""
