"""Markdown: the parser of replies, for terminal and page. It loads without Textual."""

from __future__ import annotations

from functools import cache
from io import StringIO

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token

# Nested quotes, and twice the nested lists. The parser drops deeper ones, by default from 20 on,
# and takes 3 frames of the interpreter's stack for each.
MAX_NESTING = 100
TAB_SIZE = 4
# A paragraph with more of either stays as written: the parser searches the rest of a paragraph from
# each bracket on, which takes 20 s for 64 KiB of them.
MAX_PARAGRAPH = 1 << 14
MAX_BRACKETS = 500

# Kinds of words in code, by Pygments' names of their tokens. A token that is not here has the kind
# of the nearest one above it, if there is one.
CODE_KINDS: dict[tuple[str, ...], str] = {
    ("Comment",): "comment",
    ("Error",): "wrong",
    ("Generic", "Deleted"): "wrong",
    ("Generic", "Error"): "wrong",
    ("Generic", "Emph"): "em",
    ("Generic", "Heading"): "h2",
    ("Generic", "Inserted"): "string",
    ("Generic", "Strong"): "strong",
    ("Generic", "Subheading"): "h3",
    ("Keyword",): "keyword",
    ("Literal", "Number"): "number",
    ("Literal", "String"): "string",
    ("Name", "Attribute"): "number",
    ("Name", "Builtin"): "builtin",
    ("Name", "Class"): "name",
    ("Name", "Constant"): "number",
    ("Name", "Decorator"): "name",
    ("Name", "Exception"): "builtin",
    ("Name", "Function"): "name",
    ("Name", "Tag"): "keyword",
    ("Name", "Variable"): "builtin",
    ("Operator", "Word"): "keyword",
}


@cache
def markdown_parser() -> MarkdownIt:
    """A parser of GitHub's dialect. HTML stays text, so that nothing that a model writes is
    hidden."""
    parser = MarkdownIt("gfm-like", {"html": False, "maxNesting": MAX_NESTING})
    parser.core.ruler.at("inline", _parse_inline)
    return parser


def _parse_inline(state: StateCore) -> None:
    """Parse the text of each block, as the rule of this name in markdown-it does, within bounds."""
    for token in state.tokens:
        if token.type != "inline":
            continue
        text = token.content
        if len(text) > MAX_PARAGRAPH or text.count("[") > MAX_BRACKETS:
            # The rule that finds addresses skips this type, and a later one makes it a text.
            token.children = [Token("text_special", "", 0, content=text)]
        else:
            token.children = []
            state.md.inline.parse(text, state.md, state.env, token.children)


def language_of(info: str) -> str:
    """The language that the first line of a fence names; empty if it names none."""
    return info.split()[0] if info.strip() else ""


def lines_of(text: str) -> list[str]:
    """Lines with their ends, as the parser counts them. `str.splitlines` breaks lines in more
    places, such as U+2028."""
    return StringIO(text, newline="").readlines()
