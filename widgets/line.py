"""Line: one line of a view while it is being written, and texts broken into lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, Self

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style

from widgets.glyphs import Glyphs


class Line:
    """Styled text that is appended from left to right, up to `width` cells.

    Attributes:
        room: how many cells are still free.
        segments: the text so far.
    """

    __slots__ = ("glyphs", "room", "segments")

    def __init__(self, width: int, glyphs: Glyphs) -> None:
        self.room = width
        self.glyphs = glyphs
        self.segments: list[Segment] = []

    def add(self, text: str, style: Style) -> Self:
        """Append `text`, cut hard at the end of the line."""
        text = self.glyphs.fit(text)
        return self._append(text, cell_len(text), style)

    def cell(
        self, text: str, width: int, style: Style, align: Literal["left", "right"] = "left"
    ) -> Self:
        """Append `text` in exactly `width` cells. A text that is too long is cut, and ends in an
        ellipsis."""
        text = self.glyphs.fit(text)
        length = cell_len(text)
        if length > width:
            text = self.glyphs.fit(shorten(text, width))
            length = cell_len(text)
        pad = " " * (width - length)
        return self._append(pad + text if align == "right" else text + pad, width, style)

    def extend(self, segments: Iterable[Segment], width: int) -> Self:
        """Append segments that are drawn already. They are `width` cells wide in total, and fit."""
        self.segments.extend(segments)
        self.room -= width
        return self

    def pad(self, style: Style, until: int = 0) -> Self:
        """Append blanks until only `until` cells are free."""
        if self.room > until:
            self._append(" " * (self.room - until), self.room - until, style)
        return self

    def _append(self, text: str, length: int, style: Style) -> Self:
        if length > self.room:
            text, length = set_cell_size(text, self.room), self.room
        if length:
            self.segments.append(Segment(text, style))
            self.room -= length
        return self


def shorten_parts(text: str, width: int) -> str:
    """`text` in at most `width` cells. Its parts are separated by " · ", and the last ones are left
    out if they do not fit; a single part is cut."""
    while cell_len(text) > width and " · " in text:
        text = text.rpartition(" · ")[0]
    return shorten(text, width)


def shorten(text: str, width: int) -> str:
    """`text` in at most `width` cells, with a single ellipsis if it is cut, even if it ended in one
    before."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip().rstrip("…") + "…" if width > 0 else ""


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
