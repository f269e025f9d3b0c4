"""Foreign text: breaks text from outside into lines, without changing it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len


def pieces(text: str, width: int) -> Iterator[str]:
    """`text` broken hard at `width` cells, for text that is read character by character."""
    piece, room = "", width
    for character in text:
        cells = cell_len(character)
        if cells > room and piece:
            yield piece
            piece, room = "", width
        piece += character
        room -= cells
    if piece:
        yield piece


def wrap(text: str, width: int) -> Iterator[str]:
    """`text` broken between words. A word wider than `width` cells is broken hard."""
    line = ""
    for word in text.split():
        for piece in pieces(word, width):
            longer = f"{line} {piece}" if line else piece
            if cell_len(longer) <= width:
                line = longer
            else:
                yield line
                line = piece
    yield line
