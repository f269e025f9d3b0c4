"""Legacy keys: Alt with a digit or Enter, as terminals without the kitty protocol send it.

tmux is such a terminal. Textual 8.2 takes ESC 1 to ESC 9 for the characters that Option types on a
Mac, and ESC CR for Enter. But a Mac's Option sends those characters themselves, unless it is set to
be Meta. So ESC always means Alt.
"""

from __future__ import annotations

from dataclasses import dataclass

# The table by which Textual 8.2 reads keys. There is no public way to add to it.
from textual._ansi_sequences import ANSI_SEQUENCES_KEYS

NAMES = {"\x1b\r": "alt+enter", **{f"\x1b{digit}": f"alt+{digit}" for digit in "123456789"}}


@dataclass(frozen=True, slots=True)
class _Key:
    """A key as the table has them; Textual's own type has no such names."""

    value: str


def read_alt_keys() -> None:
    """Have Textual read Alt with a digit and Alt with Enter as such from now on."""
    table: dict[str, object] = ANSI_SEQUENCES_KEYS  # type: ignore[assignment]  # declared read-only
    table.update((sequence, (_Key(name),)) for sequence, name in NAMES.items())
