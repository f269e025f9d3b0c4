"""Harmless: makes text from models, files and afar harmless for a terminal."""

from __future__ import annotations

import re

# Characters that a terminal would obey, marks that turn the direction of the text around them, and
# halves of surrogate pairs, which cannot be sent to a terminal. Joiners and the like are not among
# them: Persian words and emoji sequences are spelt with those.
HARMFUL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)

# All of Unicode's categories Cc and Cs but line ends and tabs.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def harmless(text: str) -> str:
    """`text` with readable escapes in the place of harmful characters. Its line ends and tabs
    stay."""
    return HARMFUL.sub(lambda found: _escape(found[0]), text.replace("\r\n", "\n"))


def spelt_out(text: str, *, ascii_only: bool = False) -> str:
    """`text` for whoever looks at its characters: all that cannot be seen, line ends too, is
    written as escapes.

    Args:
        ascii_only: whether all that is not ASCII is written as escapes, too.
    """
    return "".join(
        c if c.isprintable() and (c.isascii() or not ascii_only) else _escape(c) for c in text
    )


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def printable(text: str) -> str:
    """Pasted text with plain line ends, without control characters and halves of surrogate pairs.

    Format characters stay, for Persian words and emoji sequences are spelt with joiners.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub("", text)
