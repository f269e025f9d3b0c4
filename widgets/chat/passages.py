"""Passages: messages set in rows, one below the other, and where each begins."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from textual.selection import Selection

from widgets.chat.passage import Entry, Passage
from widgets.chat.typeset import Typesetter


class Passages:
    """Rows are counted from the top, where there may be one of another's before the first message.

    What changes takes effect on the positions when they are arranged.
    """

    def __init__(self) -> None:
        self._passages: list[Passage] = []
        self._starts: list[int] = []

    def __len__(self) -> int:
        return len(self._passages)

    @property
    def text(self) -> str:
        """The rows as they stand on the screen and beyond its edges."""
        lines = [p.line(i, "")[0].plain for p in self._passages for i in range(p.height)]
        return "\n".join(lines)

    def set_below(
        self, kept: int, entries: Sequence[Entry], typesetter: Typesetter, width: int
    ) -> None:
        """Set entries below the first `kept` messages, in place of what stands there."""
        self._passages[kept:] = [Passage(entry, typesetter, width) for entry in entries]

    def set_above(self, entries: Sequence[Entry], typesetter: Typesetter, width: int) -> None:
        """Set entries above all others."""
        self._passages[:0] = [Passage(entry, typesetter, width) for entry in entries]

    def update(self, index: int, entry: Entry) -> tuple[int, int]:
        """Show `entry` as message `index`. Returns where that begins, and how many of the rows
        below its header stayed.
        """
        return self._starts[index], self._passages[index].update(entry)

    def arrange(self, top: int) -> int:
        """Bring positions up to date with the rows, of which `top` come before the first message.
        Returns the height of all.
        """
        heights = [passage.height for passage in self._passages]
        self._starts = list(accumulate(heights, initial=top))
        return self._starts[-1]

    def locate(self, number: int) -> tuple[Passage | None, int]:
        """The passage that row `number` belongs to, and the row's index in it."""
        index = bisect_right(self._starts, number) - 1
        if 0 <= index < len(self._passages):
            return self._passages[index], number - self._starts[index]
        return None, 0

    def selected(self, selection: Selection, height: int) -> str:
        """The selected text as it was written: without frames, and not broken where it wraps.

        Args:
            height: rows to look at.
        """
        parts: list[str] = []
        for number in range(height):
            if (span := selection.get_span(number)) is None:
                continue
            passage, index = self.locate(number)
            if passage is None:
                continue
            row = passage.row(index)
            text = row.text.plain if index else row.lead.plain
            start = passage.line(index, "")[1]
            begin, end = (max(edge - start, 0) if edge >= 0 else len(text) for edge in span)
            parts += [row.gap if parts else "", text[begin:end]]
        return "".join(parts)
