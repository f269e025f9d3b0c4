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
    """A tile has at least one number for each of its threads.

    If it had fewer, several threads would load the same number, which is wrong for operations in
    place: one thread could load what another has stored.

    Attributes:
        rows, columns: powers of two.
        warps: of 32 threads.
    """

    rows: int
    columns: int
    warps: int


def part_of_row(columns: int) -> Tile:
    """The tile of a kernel that can split a row: a part of a row, or several short rows."""
    size = WARPS * 32 * NUMBERS
    width = min(padded(columns), size)
    return Tile(size // width, width, WARPS)


def whole_row(columns: int) -> Tile:
    """The tile of a kernel that needs a whole row: one row, or several short ones."""
    width = padded(columns)
    warps = min(max(width // (32 * NUMBERS), WARPS), MOST_WARPS)
    return Tile(max(WARPS * 32 * NUMBERS // width, 1), width, warps)


def padded(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << max(size - 1, 0).bit_length()
