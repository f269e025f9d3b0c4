"""Harmless: makes text from models, files and networks harmless for a terminal."""

from __future__ import annotations

import re

# Characters that control a terminal, marks that change the direction of the text around them, and
# halves of surrogate pairs, which cannot be sent to a terminal. Joiners and the like are allowed:
# Persian words and emoji sequences need them.
HARMFUL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)

# Unicode's categories Cc and Cs without line ends and tabs.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def harmless(text: str) -> str:
    """`text` with harmful characters as readable escapes. Its line ends and tabs stay."""
    return HARMFUL.sub(lambda found: _escape(found[0]), text.replace("\r\n", "\n"))


def spelt_out(text: str, *, ascii_only: bool = False) -> str:
    """`text` for inspecting its characters: all invisible ones, including line ends, become
    escapes.

    Args:
        ascii_only: whether non-ASCII characters become escapes, too.
    """
    return "".join(
        c if c.isprintable() and (c.isascii() or not ascii_only) else _escape(c) for c in text
    )


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def printable(text: str) -> str:
    """Pasted text with plain line ends, without control characters and halves of surrogate pairs.

    Format characters stay, because Persian words and emoji sequences need joiners.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub("", text)
