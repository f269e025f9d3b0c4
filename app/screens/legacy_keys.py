"""Keys as terminals without the kitty protocol send them, tmux among them, where Textual 8.2 reads
them otherwise.

It takes ESC 1 to ESC 9 for the characters that Option types on a Mac, and ESC CR for Enter. A Mac's
Option sends those characters themselves unless it is set to be Meta, so that ESC always means Alt.
"""

from __future__ import annotations

from dataclasses import dataclass

# The table that Textual 8.2 reads keys by; it can be added to nowhere else.
from textual._ansi_sequences import ANSI_SEQUENCES_KEYS

NAMES = {"\x1b\r": "alt+enter", **{f"\x1b{digit}": f"alt+{digit}" for digit in "123456789"}}


@dataclass(frozen=True, slots=True)
class _Key:
    """A key as the table has them, which knows no such names."""

    value: str


def read_alt_keys() -> None:
    """From now on read Alt with a digit and with Enter as such."""
    table: dict[str, object] = ANSI_SEQUENCES_KEYS  # type: ignore[assignment]  # declared read-only
    table.update((sequence, (_Key(name),)) for sequence, name in NAMES.items())
