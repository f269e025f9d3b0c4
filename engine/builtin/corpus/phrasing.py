"""Reads the corpus text, and turns its templates into wordings.

A template is one or more alternatives separated by ``|``, of which one is chosen at random.
Brackets hold alternatives for a part, ``[hi|hello] [there|]``; the caller fills slots, ``{name}``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

TEXT_DIR = Path(__file__).resolve().parent / "text"

Exchange = tuple[str, str]
"""A user's message and the assistant's reply."""

_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_ESCAPE = re.compile(r"\\([\\n])")
_OPENERS = ("please", "hey,", "hi,", "so,", "ok,", "well,", "now")


@dataclass(frozen=True, slots=True)
class Topic:
    """A subject that a user may ask about: its names, wordings of the question, and the answers."""

    names: tuple[str, ...]
    asks: tuple[str, ...]
    replies: tuple[str, ...]
    more: tuple[str, ...]


def topics(file: str) -> tuple[Topic, ...]:
    """Topics of a corpus file.

    A topic is a run of ``#`` (names, split by `` | ``) and ``?`` (question) lines, then ``=``
    (answer) and ``+`` (answer to a follow-up) lines.
    """
    found: list[Topic] = []
    fields: dict[str, list[str]] = {}
    for line in (TEXT_DIR / file).read_text(encoding="utf-8").splitlines():
        if not line.strip():
            continue
        mark, value = line[0], line[2:]
        if mark in "#?" and "=" in fields:
            found.append(_topic(fields))
            fields = {}
        fields.setdefault(mark, []).append(value)
    found.append(_topic(fields))
    return tuple(found)


def _topic(fields: dict[str, list[str]]) -> Topic:
    names = tuple(name for value in fields.get("#", []) for name in value.split(" | "))
    replies = (tuple(map(_unescape, fields.get(mark, []))) for mark in "=+")
    return Topic(names, tuple(fields.get("?", [])), *replies)


def _unescape(value: str) -> str:
    return _ESCAPE.sub(lambda match: "\n" if match[1] == "n" else "\\", value)


def table(file: str, section: str | None = None) -> tuple[tuple[str, ...], ...]:
    """Rows of a corpus table, split at `` | ``; of one ``[section]`` if the file has several."""
    return tuple(row for title, row in _rows(file) if title == section)


def _rows(file: str) -> Iterator[tuple[str | None, tuple[str, ...]]]:
    title = None
    for line in (TEXT_DIR / file).read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            title = line.strip("[]")
        elif line and not line.startswith("#"):
            yield title, tuple(line.split(" | "))


def words(section: str) -> tuple[str, ...]:
    """All fields of a section of the word table, in one row."""
    return tuple(field for row in table("words.txt", section) for field in row)


_QUESTION_WORDS = frozenset(words("question word"))


def say(rng: Random, template: str, **slots: object) -> str:
    """One wording of `template`, with alternatives chosen and slots filled."""
    while _BRACKETS.search(template):
        template = _BRACKETS.sub(lambda match: rng.choice(match[1].split("|")), template)
    text = rng.choice(template.split("|")).format(**slots)
    return " ".join(text.split())


def ask(rng: Random, template: str, *, exact: bool = False, **slots: object) -> str:
    """A user's wording of `template`: capitals, punctuation and openers vary, and there are typos.

    `exact` keeps the letters unchanged, for text that the reply has to copy.
    """
    text = say(rng, template, **slots)
    if rng.random() < 0.08:
        text = f"{rng.choice(_OPENERS)} {text}"
    if rng.random() < 0.04:
        text += ", please"
    first = text.split(" ", 1)[0].lower().strip(",")
    if rng.random() < 0.65:
        text = upper_first(text)
        text = re.sub(r"\bi\b", "I", text)
        if rng.random() < 0.85 and text[-1].isalnum():
            text += "?" if first in _QUESTION_WORDS else "."
    elif not exact and rng.random() < 0.7:
        text = text.lower()
    if not exact and rng.random() < 0.05:
        text = _slip(rng, text)
    return text


def upper_first(text: str) -> str:
    return text[0].upper() + text[1:]


def _slip(rng: Random, text: str) -> str:
    """`text` with one letter missing, doubled, or swapped with the next."""
    at = rng.randrange(len(text))
    if not text[at].isalpha():
        return text
    kind = rng.randrange(3)
    if kind == 0:
        return text[:at] + text[at + 1 :]
    if kind == 1:
        return text[:at] + text[at] + text[at:]
    return text[:at] + text[at : at + 2][::-1] + text[at + 2 :]
