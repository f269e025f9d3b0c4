"""Highlighted: code with styles for keywords, strings and so on."""

from __future__ import annotations

from functools import lru_cache

from textual.content import Content
from textual.highlight import HighlightTheme, TokenType, highlight

TAB_SIZE = 4


class _Styles(HighlightTheme):
    """Names of styles, which the style sheet sets for each theme; the keys are Pygments' token
    names. Textual's own styles are fainter than the theme's, and its ANSI styles name some that do
    not exist."""

    STYLES: dict[TokenType, str] = {  # noqa: RUF012  # as Textual has it
        ("Comment",): ".comment",
        ("Error",): ".wrong",
        ("Generic", "Deleted"): ".wrong",
        ("Generic", "Error"): ".wrong",
        ("Generic", "Emph"): ".em",
        ("Generic", "Heading"): ".h2",
        ("Generic", "Inserted"): ".string",
        ("Generic", "Strong"): ".strong",
        ("Generic", "Subheading"): ".h3",
        ("Keyword",): ".keyword",
        ("Literal", "Number"): ".number",
        ("Literal", "String"): ".string",
        ("Name", "Attribute"): ".number",
        ("Name", "Builtin"): ".builtin",
        ("Name", "Class"): ".name",
        ("Name", "Constant"): ".number",
        ("Name", "Decorator"): ".name",
        ("Name", "Exception"): ".builtin",
        ("Name", "Function"): ".name",
        ("Name", "Tag"): ".keyword",
        ("Name", "Variable"): ".builtin",
        ("Operator", "Word"): ".keyword",
    }


CODE_STYLES = frozenset(_Styles.STYLES.values())


# 60 lines take 35 ms; a whole reply is typeset again at its end, and at another width.
@lru_cache(maxsize=128)
def highlighted(code: str, language: str) -> Content:
    """`code` in the styles of `language`, or plain if that is unknown."""
    return highlight(code, language=language, theme=_Styles, tab_size=TAB_SIZE)
