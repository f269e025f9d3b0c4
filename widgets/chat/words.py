"""Words: what was searched for, as it is found in a text again."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable


def folded(text: str) -> str:
    """`text` without accents and capitals. Each character stays one, so that positions do."""
    if text.isascii():
        return text.lower()
    return "".join((unicodedata.normalize("NFD", c.lower()) or c)[0] for c in text)


# From Thai on, scripts are mostly written without blanks between words.
_UNSPACED = "\u0e00"


def pattern(words: Iterable[str]) -> re.Pattern[str] | None:
    """Finds in a folded text where a word begins with one of these. None if there are none."""
    starts = [folded(word) for word in words if word]
    alternatives = (
        re.escape(s) if s[0] >= _UNSPACED else rf"(?<!\w){re.escape(s)}" for s in starts
    )
    return re.compile("|".join(alternatives)) if starts else None
