"""Passages: the messages of a chat one below the other, of which those are set that are looked at.

To set a message of 2,000 characters takes 3.5 ms, and a chat may have thousands. So the height of a
message is a guess until it comes into view.
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

# So many messages stay set. Those on three screens of one-line messages are fewer.
KEPT = 200


class Passages:
    """Rows are counted from the top of the first message. What changes takes effect on the
    positions when they are arranged.

    Attributes:
        entries: the messages, oldest first.
        height: rows of all, as far as they were arranged.
        shows_thinking: whether thinking is shown without being asked for.
    """

    def __init__(self) -> None:
        self.entries: Sequence[Entry] = ()
        self.height = 0
        self.shows_thinking = False
        self._turned: set[str] = set()  # messages that one has folded or unfolded
        self._set: dict[int, Passage] = {}
        self._heights: list[int] = []
        self._starts: list[int] = [0]
        self._typesetter: Typesetter | None = None
        self._width = 1

    @property
    def text(self) -> str:
        """The rows that are set, as they stand on the screen and beyond its edges."""
        return "\n".join(line for _, p in sorted(self._set.items()) for line in p.lines)

    def show(self, entries: Sequence[Entry], typesetter: Typesetter, width: int) -> None:
        """Show these messages; none of them is set yet."""
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
        """Show these messages instead. What was set of those that are the same stays.

        Returns:
            the indices of those that are set and have changed, from the first to where the messages
            are others.
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
        """Set a message anew that has changed. Returns where it begins, and how many of the rows
        below its header stayed."""
        passage = self._set[index]
        stayed = passage.update(self.entries[index])
        self._heights[index] = passage.height
        return self._starts[index], stayed

    def arrange(self) -> None:
        """Bring positions up to date with the heights."""
        self._starts = list(accumulate(self._heights, initial=0))
        self.height = self._starts[-1]

    def find(self, key: str) -> int | None:
        """The index of the message with this key."""
        # From the end: what one looks for is most often new.
        for index in range(len(self.entries) - 1, -1, -1):
            if self.entries[index].key == key:
                return index
        return None

    def place(self, index: int) -> tuple[int, int]:
        """Where a message begins, and its height."""
        return self._starts[index], self._heights[index]

    def passage(self, index: int) -> Passage:
        """A message, which is set if it was not."""
        passage = self._set.get(index)
        if passage is None:
            passage = self._set[index] = self._make(index)
            self._heights[index] = passage.height
        return passage

    def index_at(self, row: int) -> int:
        """The index of the message that a row belongs to, or of the one that is nearest to it."""
        return max(0, min(bisect_right(self._starts, row) - 1, len(self.entries) - 1))

    def locate(self, row: int) -> tuple[Passage | None, int]:
        """The message that a row belongs to, if it is set, and the row's index in it."""
        if not 0 <= row < self.height:
            return None, 0
        index = self.index_at(row)
        return self._set.get(index), row - self._starts[index]

    def look(self, top: int, height: int) -> int:
        """Set what can be seen through a window of so many rows.

        Returns:
            the window's top at which what was set before stands where it stood in the window.
        """
        if not self.entries:
            return 0
        seen = range(self.index_at(top), self.index_at(top + height - 1) + 1)
        anchor = next((index for index in seen if index in self._set), seen.start)
        return self.look_from(anchor, top - self._starts[anchor], height)

    def look_from(self, anchor: int, offset: int, height: int) -> int:
        """As `look`, with the window's top so many rows below the beginning of a message."""
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

    def look_at_end(self, height: int) -> int:
        """As `look`, with the window at the end."""
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
        """Have a message drawn anew, or all of them."""
        for passage in self._set.values():
            if not key or passage.entry.key == key:
                passage.strips.clear()

    def selected(self, selection: Selection) -> str:
        """The selected text as it was written: without frames, and not broken where it wraps."""
        parts: list[str] = []
        first = self.index_at(selection.start.y if selection.start else 0)
        last = self.index_at(selection.end.y if selection.end else self.height)
        for index in range(first, min(last + 1, len(self.entries))):
            for gap, text in self._selected_of(index, selection):
                parts += [gap if parts else "", text]
        return "".join(parts)

    def _selected_of(self, index: int, selection: Selection) -> Iterator[tuple[str, str]]:
        """The selected rows of a message, each behind the gap before it."""
        passage, start = self._set.get(index), self._starts[index]
        if passage is None:
            # Rows were never seen, so that none of them is an end of the selection.
            passage = self._make(index)
            yield from ((row.gap, text) for row, text, _ in passage.texts)
            return
        for number, (row, text, begin) in enumerate(passage.texts, start):
            if (span := selection.get_span(number)) is not None:
                left, right = (max(x - begin, 0) if x >= 0 else len(text) for x in span)
                yield row.gap, text[left:right]

    def _make(self, index: int) -> Passage:
        entry = self.entries[index]
        assert self._typesetter is not None
        is_open = entry.key in self._turned
        shows_thinking = is_open != self.shows_thinking
        folds = Folds(self._typesetter, self._width, is_open=is_open, shows_thinking=shows_thinking)
        return Passage(entry, self._typesetter, self._width, folds)

    def _guess(self, entry: Entry) -> int:
        """About how many rows a message has."""
        text = entry.text
        return 2 + bool(text) + text.count("\n") + len(text) // self._width

    def _forget(self, seen: range, top: int, height: int) -> None:
        """Keep the rows of the messages that are nearest to those that are seen, and as they were
        drawn those up to a screen away. The others keep their heights."""
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
