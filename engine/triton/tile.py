"""Tile: the part of a matrix that one program has."""

from __future__ import annotations

from dataclasses import dataclass

# Numbers of a thread: in two bytes each they are one access of 16 bytes, the widest there is.
NUMBERS = 8
# Threads of a program that has no whole row to itself. A multiprocessor holds 16 such programs, and
# 2 tokens of a small model still give each of 132 multiprocessors something to do.
WARPS = 4
# With more warps their sum at a barrier takes longer than the few numbers each of them saves.
MOST_WARPS = 16


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile has one number or more for each of its threads.

    Fewer would be loaded by several threads each, which is no longer right in place: one thread
    could load what another has stored.

    Attributes:
        rows, columns: powers of two.
        warps: of 32 threads.
    """

    rows: int
    columns: int
    warps: int


def part_of_row(columns: int) -> Tile:
    """The tile of a kernel that can cut a row: a part of it, or several rows if they are short."""
    size = WARPS * 32 * NUMBERS
    width = min(padded(columns), size)
    return Tile(size // width, width, WARPS)


def whole_row(columns: int) -> Tile:
    """The tile of a kernel that has to see all of a row, or several rows if they are short."""
    width = padded(columns)
    warps = min(max(width // (32 * NUMBERS), WARPS), MOST_WARPS)
    return Tile(max(WARPS * 32 * NUMBERS // width, 1), width, warps)


def padded(size: int) -> int:
    """The power of two from `size` on."""
    return 1 << max(size - 1, 0).bit_length()
