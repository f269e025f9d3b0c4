"""Passages: the messages of a chat in a column, typeset only when they are viewed.

Typesetting a message of 2,000 characters takes 3.5 ms, and a chat may have thousands. So the height
of a message is an estimate until it comes into view.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from textual.selection import Selection

from widgets.chat.entry import Entry
from widgets.chat.folds import Folds
from widgets.chat.passage import Passage
from widgets.chat.typeset import Typesetter

# How many messages stay typeset. Three screens of one-line messages have fewer.
KEPT = 200


class Passages:
    """Rows are counted from the top of the first message. Changes affect positions at the next
    `arrange`.

    Attributes:
        entries: the messages, oldest first.
        height: rows of all messages, as of the last `arrange`.
        shows_thinking: whether thinking is unfolded by default.
    """

    def __init__(self) -> None:
        self.entries: Sequence[Entry] = ()
        self.height = 0
        self.shows_thinking = False
        self._turned: set[str] = set()  # messages that the user has folded or unfolded
        self._set: dict[int, Passage] = {}
        self._heights: list[int] = []
        self._starts: list[int] = [0]
        self._typesetter: Typesetter | None = None
        self._width = 1

    @property
    def text(self) -> str:
        """The typeset rows, as drawn, also outside of the view."""
        return "\n".join(line for _, p in sorted(self._set.items()) for line in p.lines)

    def set_entries(self, entries: Sequence[Entry], typesetter: Typesetter, width: int) -> None:
        """Show these messages; none of them is typeset yet."""
        self._typesetter, self._width = typesetter, width
        self._set.clear()
        self.entries = entries
        self._heights = [self._guess(entry) for entry in entries]
        self.arrange()

    def fold(self, key: str) -> None:
        """Unfold a message, or fold it again."""
        self._turned ^= {key}
        index = self.find(key)
        if index is not None and self._set.pop(index, None) is not None:
            self.passage(index)

    def change(self, entries: Sequence[Entry]) -> list[int]:
        """Show these messages instead. Unchanged ones stay typeset.

        Returns:
            the indices of typeset messages that have changed, up to the first with another key.
        """
        before, self.entries = self.entries, entries
        changed, common = [], 0
        for old, new in zip(before, entries, strict=False):
            if old is not new:
                if old.key != new.key:
                    break
                if old != new:
                    changed.append(common)
            common += 1
        if common < len(before) or common < len(entries):
            for index in [index for index in self._set if index >= common]:
                del self._set[index]
            self._heights[common:] = [self._guess(entry) for entry in entries[common:]]
        for index in changed:
            if index not in self._set:
                self._heights[index] = self._guess(entries[index])
        return [index for index in changed if index in self._set]

    def update(self, index: int) -> tuple[int, int]:
        """Typeset a changed message again. Returns its first row, and how many of the rows below
        its header are unchanged."""
        passage = self._set[index]
        stayed = passage.update(self.entries[index])
        self._heights[index] = passage.height
        return self._starts[index], stayed

    def arrange(self) -> None:
        """Update positions to the heights."""
        self._starts = list(accumulate(self._heights, initial=0))
        self.height = self._starts[-1]

    def find(self, key: str) -> int | None:
        """The index of the message with this key."""
        # From the end: the wanted message is most often a new one.
        for index in range(len(self.entries) - 1, -1, -1):
            if self.entries[index].key == key:
                return index
        return None

    def place(self, index: int) -> tuple[int, int]:
        """The first row of a message, and its height."""
        return self._starts[index], self._heights[index]

    def passage(self, index: int) -> Passage:
        """A message, typeset if it was not."""
        passage = self._set.get(index)
        if passage is None:
            passage = self._set[index] = self._make_passage(index)
            self._heights[index] = passage.height
        return passage

    def index_at(self, row: int) -> int:
        """The index of the message that has a row, or of the nearest one."""
        return max(0, min(bisect_right(self._starts, row) - 1, len(self.entries) - 1))

    def locate(self, row: int) -> tuple[Passage | None, int]:
        """The message that has a row, if it is typeset, and the row's index in it."""
        if not 0 <= row < self.height:
            return None, 0
        index = self.index_at(row)
        return self._set.get(index), row - self._starts[index]

    def typeset(self, top: int, height: int) -> int:
        """Typeset the messages in a window of so many rows.

        Returns:
            the new top of the window, at which typeset messages have not moved in the window.
        """
        if not self.entries:
            return 0
        seen = range(self.index_at(top), self.index_at(top + height - 1) + 1)
        anchor = next((index for index in seen if index in self._set), seen.start)
        return self.typeset_from(anchor, top - self._starts[anchor], height)

    def typeset_from(self, anchor: int, offset: int, height: int) -> int:
        """As `typeset`, with the window's top so many rows below the beginning of a message."""
        self.passage(anchor)
        while True:
            self.arrange()
            last = self._heights[anchor] - 1
            top = self._starts[anchor] + min(offset, last)
            top = max(0, min(top, self.height - height))
            seen = range(self.index_at(top), self.index_at(top + height - 1) + 1)
            unset = [index for index in seen if index not in self._set]
            if not unset:
                break
            for index in unset:
                self.passage(index)
        self._forget(seen, top, height)
        return top

    def typeset_end(self, height: int) -> int:
        """As `typeset`, with the window at the end."""
        if not self.entries:
            return 0
        room = height
        for index in range(len(self.entries) - 1, -1, -1):
            if room <= 0:
                break
            room -= self.passage(index).height
        self.arrange()
        top = max(0, self.height - height)
        self._forget(range(index, len(self.entries)), top, height)
        return top

    def redraw(self, key: str = "") -> None:
        """Mark a message, or all of them, to be drawn again."""
        for passage in self._set.values():
            if not key or passage.entry.key == key:
                passage.strips.clear()

    def selected(self, selection: Selection) -> str:
        """The selected text as it was written: without frames, and without the line breaks of
        wrapping."""
        parts: list[str] = []
        first = self.index_at(selection.start.y if selection.start else 0)
        last = self.index_at(selection.end.y if selection.end else self.height)
        for index in range(first, min(last + 1, len(self.entries))):
            for gap, text in self._selected_of(index, selection):
                parts += [gap if parts else "", text]
        return "".join(parts)

    def _selected_of(self, index: int, selection: Selection) -> Iterator[tuple[str, str]]:
        """The selected rows of a message, each with the gap before it."""
        passage, start = self._set.get(index), self._starts[index]
        if passage is None:
            # Its rows were never in view, so none of them is an end of the selection.
            passage = self._make_passage(index)
            yield from ((row.gap, text) for row, text, _ in passage.texts)
            return
        for number, (row, text, begin) in enumerate(passage.texts, start):
            if (span := selection.get_span(number)) is not None:
                left, right = (max(x - begin, 0) if x >= 0 else len(text) for x in span)
                yield row.gap, text[left:right]

    def _make_passage(self, index: int) -> Passage:
        entry = self.entries[index]
        assert self._typesetter is not None
        is_open = entry.key in self._turned
        shows_thinking = is_open != self.shows_thinking
        folds = Folds(self._typesetter, self._width, is_open=is_open, shows_thinking=shows_thinking)
        return Passage(entry, self._typesetter, self._width, folds)

    def _guess(self, entry: Entry) -> int:
        """The estimated number of rows of a message."""
        text = entry.text
        return 2 + bool(text) + text.count("\n") + len(text) // self._width

    def _forget(self, seen: range, top: int, height: int) -> None:
        """Keep the rows of the messages nearest to those in view, and the strips up to a screen
        away. The others only keep their heights."""
        for index in seen:
            if index in self._set:
                first = top - self._starts[index]
                self._set[index].forget_strips(range(first - height, first + 2 * height))
        if len(self._set) <= KEPT + len(seen):
            return
        middle = (seen.start + seen.stop) // 2
        near = sorted(self._set, key=lambda index: abs(index - middle))
        for index in near[KEPT // 2 + len(seen) :]:
            del self._set[index]
