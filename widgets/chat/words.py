"""Words: finds the words of a search in a text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable


def folded(text: str) -> str:
    """`text` in lower case without accents. Its length stays, and so do positions."""
    if text.isascii():
        return text.lower()
    return "".join((unicodedata.normalize("NFD", c.lower()) or c)[0] for c in text)


# From Thai on, scripts mostly have no blanks between words.
_UNSPACED = "\u0e00"


def pattern(words: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern that finds the beginnings of words with one of these in a folded text. None if
    there are none."""
    starts = [folded(word) for word in words if word]
    alternatives = (
        re.escape(s) if s[0] >= _UNSPACED else rf"(?<!\w){re.escape(s)}" for s in starts
    )
    return re.compile("|".join(alternatives)) if starts else None
