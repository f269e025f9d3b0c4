"""Harmless: text from models, files and afar, as a terminal may have it."""

from __future__ import annotations

import re

# What a terminal would obey, the marks that turn the direction of what stands around them, and
# halves of surrogate pairs, which it cannot be sent. Joiners and the like stay: Persian words and
# emoji sequences are spelt with them.
HARMFUL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def harmless(text: str) -> str:
    """`text` with what would do harm as escapes that can be read; its lines and tabs stay."""
    return HARMFUL.sub(lambda found: _escape(found[0]), text.replace("\r\n", "\n"))


def spelt_out(text: str, *, ascii_only: bool = False) -> str:
    """`text` for whoever looks at its characters: all that cannot be seen, lines too, as escapes.

    Args:
        ascii_only: all that is not in ASCII, too.
    """
    return "".join(
        c if c.isprintable() and (c.isascii() or not ascii_only) else _escape(c) for c in text
    )


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
