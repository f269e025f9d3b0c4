"""Excerpt: the part of a text in which words were found."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from widgets.chat.words import folded, pattern
from widgets.glyphs import UNICODE


def excerpt(text: str, words: Sequence[str], length: int, before: int) -> str:
    """At most `length` characters around the first of these words, or from the beginning.

    Args:
        before: how many characters may stand before it.
    """
    found = pattern(words)
    first = found.search(folded(text)) if found else None
    start = max(0, first.start() - before) if first else 0
    start = 0 if start + length >= len(text) and start < before else start
    part = text[start : start + length].strip()
    return ("…" if start else "") + part + ("…" if start + length < len(text) else "")


def marked(text: str, words: Sequence[str]) -> Content:
    """A text as it is shown, with these words reversed wherever they stand."""
    shown = "\n".join(map(UNICODE.fit, text.split("\n")))
    content = Content(shown)
    if found := pattern(words):
        for hit in found.finditer(folded(shown)):
            content = content.stylize("reverse", hit.start(), hit.end())
    return content
