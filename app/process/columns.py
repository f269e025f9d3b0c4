"""Columns: sets rows of text as an aligned table for a terminal or a log."""

from __future__ import annotations

from collections.abc import Sequence


def align(rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> list[str]:
    """Lines with cells of equal width, two blanks apart.

    Args:
        rows: the cells of each row; all rows have the same number of cells.
        numbers: the indices of right-aligned columns.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if index in numbers else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def row(cells: Sequence[str], widths: Sequence[int]) -> str:
    """One line of a table whose rows are printed as they come, cells one blank apart.

    Args:
        cells: the texts, at most as many as there are widths.
        widths: the width of each cell in characters. A negative width aligns the cell left.
    """
    return " ".join(
        cell.rjust(width) if width > 0 else cell.ljust(-width)
        for cell, width in zip(cells, widths, strict=False)
    ).rstrip()
