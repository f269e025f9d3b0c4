"""Passage: one message of a chat, typeset in rows and drawn."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from re import Pattern

from rich.cells import cell_len
from textual.content import Content
from textual.strip import Strip

from widgets.chat.entry import Entry
from widgets.chat.folds import Folds
from widgets.chat.typeset import Document, Row, Typesetter, wrap
from widgets.harmless import HARMFUL

GUTTER = 1  # the edge, where the current message is marked
INDENT = GUTTER + 2
BLANK = Row()


def folded(text: str) -> str:
    """`text` in lower case without accents. Its length stays, and so do positions."""
    if text.isascii():
        return text.lower()
    return "".join((unicodedata.normalize("NFD", c.lower()) or c)[0] for c in text)


# From Thai on, scripts mostly have no blanks between words.
_UNSPACED = "\u0e00"


def pattern(words: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern that finds the beginnings of words with one of these in a folded text. None if
    there are none."""
    starts = [folded(word) for word in words if word]
    alternatives = (
        re.escape(s) if s[0] >= _UNSPACED else rf"(?<!\w){re.escape(s)}" for s in starts
    )
    return re.compile("|".join(alternatives)) if starts else None


class Passage:
    """An entry in rows (its header, its foldable parts, its text and a blank row).

    Attributes:
        strips: the drawn rows near the view, by index.
    """

    def __init__(self, entry: Entry, typesetter: Typesetter, width: int, folds: Folds) -> None:
        self.entry = entry
        self._width = width
        self._glyphs = typesetter.glyphs
        self._folds = folds
        self._document = Document(typesetter, width) if entry.role == "assistant" else None
        self._thoughts = Document(typesetter, width)
        self._thought = ("", True)  # the typeset thinking, and whether it is complete
        self._body: list[Row] = []
        self._num_thoughts = 0  # rows of thinking, with the line above it
        self._last_text = 0  # the row with the cursor of a growing text
        self.strips: dict[int, Strip] = {}
        self._set_body()

    def update(self, entry: Entry) -> int:
        """Show `entry` instead; returns how many rows below the header are unchanged. The first of
        them may have changed."""
        self.entry = entry
        return self._set_body()

    def _set_body(self) -> int:
        entry, before, last = self.entry, self._body, self._last_text
        if self._document is not None:
            above = self._set_thinking()
            self._num_thoughts = len(above)
            self._document.grow(HARMFUL.sub("", entry.text), complete=not entry.growing)
            below = list(self._folds.calls(entry))
            if above and not (entry.text or below or entry.growing):
                below = [Row(Content.styled("The reply is thinking only, without text.", ".muted"))]
            body = _spaced(above, self._document.rows, below)
        elif entry.role == "tool":
            body = list(self._folds.answer(entry))
        else:
            text = list(wrap(Content(HARMFUL.sub("", entry.text)), self._width))
            body = _spaced(list(self._folds.attachments(entry)), text if entry.text else [])
        self._body = body
        self._last_text = self._find_last_text()
        if self._is_note_below(entry):
            style = ".failed" if entry.failed else ".muted"
            sentence = Content.styled(self._glyphs.fit(entry.note), style)
            self._body = [*body, *wrap(sentence, self._width)]
        pairs = enumerate(zip(before, self._body, strict=False))
        stayed = next((i for i, (old, new) in pairs if i and old is not new), len(before))
        stayed = max(min(stayed, len(self._body), last - 1, self._last_text - 1), 0)
        self.strips = {i: strip for i, strip in self.strips.items() if 2 <= i <= stayed}
        return stayed

    def forget_strips(self, near: range) -> None:
        """Keep the strips of these rows only.

        A strip takes 2 KB: those of a reply that is followed for 1,000 rows would take 2 MB.
        """
        if len(self.strips) > len(near):
            self.strips = {i: strip for i, strip in self.strips.items() if i in near}

    def _set_thinking(self) -> list[Row]:
        """Typeset the thinking, as far as it is shown. It has ended once there is text."""
        entry = self.entry
        if not entry.thinking:
            return []
        head = self._folds.thinking(entry)
        if not self._folds.shows_thinking:
            return [head]
        complete = not entry.growing or bool(entry.text)
        thought = (HARMFUL.sub("", entry.thinking), complete)
        if thought != self._thought:
            self._thought = thought
            self._thoughts.grow(thought[0], complete=complete)
        return [head, *self._thoughts.rows]

    def _find_last_text(self) -> int:
        """The last row that has text. A row of code has a frame after it even if it is empty."""
        for index in range(len(self._body), 0, -1):
            if self._body[index - 1].text or self._body[index - 1].tail:
                return index
        return 0

    def first_row_with(self, words: Pattern[str] | None) -> int:
        """The first row below the header with one of the words; 0 if there is none."""
        if words is None:
            return 0
        rows = enumerate(self._body, 1)
        return next((i for i, row in rows if words.search(folded(row.text.plain))), 0)

    @property
    def height(self) -> int:
        return 1 + len(self._body) + 1

    def row(self, index: int) -> Row:
        if index == 0:
            return Row(lead=self._header())
        return self._body[index - 1] if index <= len(self._body) else BLANK

    @property
    def texts(self) -> Iterator[tuple[Row, str, int]]:
        """The rows, the text that is copied from each, and its column on the screen."""
        for index in range(self.height):
            row = self.row(index)
            if index == 0:
                yield row, row.lead.plain, GUTTER
            else:
                yield row, row.text.plain, INDENT + len(row.lead)

    @property
    def lines(self) -> list[str]:
        """The rows as drawn, without the edge."""
        return [self.line(index, "")[GUTTER:].plain for index in range(self.height)]

    def line(
        self, index: int, cursor: str, edge: str = " ", words: Pattern[str] | None = None
    ) -> Content:
        """Draw a row.

        Args:
            cursor: appended to a growing text.
            edge: precedes each row but the last, which is blank.
            words: highlighted in the text.
        """
        row = self.row(index)
        margin = Content.styled(edge if index < self.height - 1 else " ", ".mark")
        if index == 0:
            return margin + row.lead
        start = INDENT + len(row.lead)
        text = row.text
        for found in words.finditer(folded(text.plain)) if words is not None else ():
            text = text.stylize(".hit", *found.span())
        content = row.lead + text + row.tail
        content = margin + (content.pad_left(INDENT - GUTTER) if content else content)
        if index <= self._num_thoughts:
            content = content.stylize(".muted", GUTTER)
        if self.entry.growing and index == self._last_text:
            end = start + len(row.text)
            content = content[:end] + Content.styled(cursor, ".mark") + content[end + 1 :]
        return content

    def _is_note_below(self, entry: Entry) -> bool:
        """Whether the note has separate lines: it does if the message failed, or if it waits and
        the reason does not fit into the header."""
        branch = f"  {entry.branch[0]}/{entry.branch[1]}" if entry.branch else ""
        header = f"{entry.author}  {entry.clock}{branch} · {entry.note}"
        return entry.failed or (entry.growing and cell_len(header) > self._width)

    def _header(self) -> Content:
        entry = self.entry
        author_style = ".user" if entry.role == "user" else ".assistant"
        author = self._glyphs.fit(entry.author)
        header = Content.assemble((author, author_style), (f"  {entry.clock}", ".muted"))
        if entry.branch is not None:
            place = f"  {entry.branch[0]}/{entry.branch[1]}"
            header += Content.styled(place, ".mark")
        if entry.note:
            # The error of a failed message may be long, so it is below the text.
            note, style = ("failed", ".failed") if entry.failed else (entry.note, ".muted")
            if not entry.failed and self._is_note_below(entry):
                note = note.partition(":")[0]
            said = (self._glyphs.fit(" · "), ".muted"), (self._glyphs.fit(note), style)
            return Content.assemble(header, *said)
        return header


def _spaced(*parts: list[Row]) -> list[Row]:
    """The rows of all parts, with a blank one between them."""
    rows: list[Row] = []
    for part in parts:
        if rows and part:
            rows.append(BLANK)
        rows += part
    return rows
