"""Query: the parsed input of a search for chats."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

SOURCES = {"you": "screen", "mqtt": "mqtt"}

# Scripts without blanks between words: Thai, Lao, Burmese, Khmer, kana and Han, the latter with its
# extensions. Every character of them counts as a word.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff"
)
_CHARACTER = re.compile(f"([{_UNSPACED}])")
_PART = re.compile(r'"([^"]*)"?|(\S+)')
_WORD = re.compile(r"[^\W_]")  # FTS5's definition, which excludes the underscore


class QueryError(ValueError):
    """The input cannot be searched for: it has an invalid filter, or no word. The message says what
    is wrong."""


@dataclass(frozen=True, slots=True)
class Query:
    """The required words of a search, and its other conditions on a chat.

    Attributes:
        phrases: each is one word or several consecutive ones. The last word of the last one may be
            the beginning of a word, if `is_open`.
        is_open: whether the last phrase is still being typed.
        model: part of the name of a model that replied in the chat; empty for any.
        source: the chat's front end; empty for any.
        after, before: seconds since the epoch, the latter exclusive; None for any time.
        archived: whether to include archived chats.
        pinned: whether the chat is pinned; None for any.
    """

    phrases: tuple[str, ...] = ()
    is_open: bool = False
    model: str = ""
    source: str = ""
    after: float | None = None
    before: float | None = None
    archived: bool = False
    pinned: bool | None = None

    @property
    def match(self) -> str:
        """The phrases as an FTS5 query; empty if there are none.

        Whole words, and words in sequence, rank higher.
        """
        terms = [f'"{split(phrase)}"' for phrase in self.phrases]
        if not terms:
            return ""
        text = " AND ".join(terms)
        also = [f"({text})"] if self.is_open else []
        if len(terms) > 1:
            also.append('"' + split(" ".join(self.phrases)) + '"')
        star = "*" if self.is_open else ""
        return " OR ".join((f"({text}{star})", *also))


def parse(text: str) -> Query:
    """Parse the input: words, phrases in quotes, and filters such as `model:qwen`.

    Raises:
        QueryError: a filter has an invalid value, or there is neither filter nor word.
    """
    phrases: list[str] = []
    filters: dict[str, Any] = {}  # attributes of `Query`
    is_open = has_filter = False
    for found in _PART.finditer(text):
        quoted, plain = found.groups()
        name, colon, value = (plain or "").partition(":")
        if colon and name in _FILTERS:
            has_filter = True
            if value:
                filters[name] = _FILTERS[name](name, value)
            continue
        part = _clean(plain if quoted is None else quoted)
        if _WORD.search(part):
            phrases.append(part)
            is_open = quoted is None and found.end() == len(text)
    if _clean(text).strip() and not phrases and not has_filter:
        raise QueryError(f"{text.strip()!r} has no word to look for")
    return Query(tuple(phrases), is_open, **filters)


def split(text: str) -> str:
    """A text in which each character that counts as a word is separated."""
    return text if text.isascii() else _CHARACTER.sub(r"\1 ", text)


def _clean(text: str) -> str:
    """A part without characters that are special to FTS5 or SQLite."""
    return text.replace('"', " ").replace("\0", " ").encode("utf-8", "replace").decode()


def _model(_name: str, value: str) -> str:
    return value.casefold()


def _source(name: str, value: str) -> str:
    if value not in SOURCES:
        raise QueryError(f"{name} is {value!r}; allowed are {', '.join(SOURCES)}")
    return SOURCES[value]


def _date(name: str, value: str) -> float:
    try:
        return datetime.strptime(value, "%Y-%m-%d").timestamp()
    except (ValueError, OverflowError, OSError):
        text = f"{name} is {value!r}; it must be a day such as 2026-11-01"
        raise QueryError(text) from None


def _yes(name: str, value: str) -> bool:
    if value not in ("yes", "no"):
        raise QueryError(f"{name} is {value!r}; allowed are yes, no")
    return value == "yes"


_FILTERS = {
    "model": _model,
    "source": _source,
    "after": _date,
    "before": _date,
    "archived": _yes,
    "pinned": _yes,
}
