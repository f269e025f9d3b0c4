"""Slash: what is done by a line that begins with a slash."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import takewhile

from textual.app import SystemCommand

_CLOSE, _LIKENESS = 4, 0.5


class UnknownSlashError(Exception):
    """There is none of that name; the message says which are like it."""


@dataclass(frozen=True, slots=True)
class Slash:
    """One command, or a saved prompt.

    Attributes:
        does: what it does, in a few words.
        run: is given what follows the name; False if it refused that, and has told the user why.
        takes: what follows the name; empty if nothing does.
        completed: what may become of the beginning of that.
    """

    name: str
    does: str
    run: Callable[[str], object]
    takes: str = ""
    completed: Callable[[str], Sequence[str]] = lambda _: ()


def name_of(command: SystemCommand) -> str:
    """What a command of the palette is called behind a slash: New chat is /new-chat."""
    return "-".join(re.findall(r"[\w.]+", command.title.lower()))


def split(text: str) -> tuple[str, str]:
    """The name behind the slash, and what follows it."""
    name, _, rest = re.split(r"(\s|$)", text[1:], maxsplit=1)
    return name, rest.strip()


def matching(name: str, slashes: Sequence[Slash]) -> list[Slash]:
    """Those whose names begin so, and then those with a word that does."""
    starts = [slash for slash in slashes if slash.name.startswith(name)]
    others = (slash for slash in slashes if not slash.name.startswith(name))
    return starts + [slash for slash in others if f"-{name}" in slash.name]


def find(name: str, slashes: Sequence[Slash]) -> Slash:
    """The one that is meant: by its name, or by the first words of that.

    Raises:
        UnknownSlashError: none is meant, or several may be.
    """
    for slash in slashes:
        if slash.name == name:
            return slash
    meant = [slash for slash in slashes if name and slash.name.startswith(f"{name}-")]
    if len(meant) == 1:
        return meant[0]
    names = [slash.name for slash in slashes]
    by_word = {word: each for each in reversed(names) for word in (each, *each.split("-"))}
    # Whoever begins right is close, however much is missing: /tempo means /temperature.
    words = get_close_matches(name, by_word, 9, _LIKENESS)
    words.sort(key=lambda word: -_shared(name, word))
    like = [slash.name for slash in meant] or list(dict.fromkeys(by_word[word] for word in words))
    close = ", ".join(f"/{each}" for each in like[:_CLOSE])
    hint = f"; close to it are {close}" if close else ""
    raise UnknownSlashError(
        f"/{name} is no command and no saved prompt{hint}. A message that begins with a slash is"
        " written with two."
    )


def _shared(one: str, other: str) -> int:
    """With how many letters both begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
