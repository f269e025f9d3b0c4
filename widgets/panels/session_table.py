"""SessionTable: every chat with its newest request, sorted and filtered."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import ClassVar

from rich.cells import cell_len
from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message

from engine.api.glossary import glosses
from engine.api.snapshot import Goodput, RequestView
from widgets.figures import compact, count
from widgets.glyphs import UNICODE, Glyphs, Mark
from widgets.line import Line, shorten
from widgets.panels.chat_row import ChatRow
from widgets.panels.field import Field, Leaving
from widgets.panels.list_cursor import ListCursor
from widgets.panels.scroll_panel import ScrollPanel, list_keys
from widgets.panels.session_columns import (
    BY_STATE,
    CURSOR_WIDTH,
    FIGURES,
    ID_WIDTH,
    SORTS,
    Figure,
    SessionColumns,
    sort_key,
)


class SessionTable(ScrollPanel, can_focus=True):
    """A row for each chat. The cursor stays on its chat when rows move."""

    GLOSS: ClassVar[Mapping[str, str]] = glosses(
        *("src", "waiting", "prefill", "decode", "queue", "TTFT", "TPOT", "p99"),
        *("tok", "blk", "shared", "reserved", "preempted"),
    )

    KEYS: ClassVar[Mapping[str, str]] = {"filter": "/", "sort": "s", "clear": "esc"}

    BINDINGS: ClassVar[list[BindingType]] = [
        *list_keys("table"),
        Binding("enter", "choose", "Open", id="table.open"),
        Binding("s", "sort", "Sort", id="table.sort"),
        Binding("S", "reverse", "Reverse", key_display="S", id="table.reverse"),
        Binding("slash", "filter", "Filter", key_display="/", id="table.filter"),
        Binding("escape", "clear", "All", tooltip="Show all chats again", id="table.clear"),
    ]

    class Highlighted(Message):
        """The cursor moved to another chat."""

        def __init__(self, row: ChatRow) -> None:
            super().__init__()
            self.row = row

    class Selected(Message):
        """A chat was chosen with Enter or a click."""

        def __init__(self, row: ChatRow) -> None:
            super().__init__()
            self.row = row

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self.sort = BY_STATE
        self.descending = False
        self.filter = ""
        self._field = Field(self._typed, self._left)
        self._chats: Sequence[ChatRow] = ()
        self._cursor = ListCursor[ChatRow](lambda row: row.key)
        self._goodput: Goodput | None = None
        self._paused = False
        self._awaited = ""  # the key of the chat that is to come into view

    def show(
        self,
        chats: Sequence[ChatRow],
        goodput: Goodput | None = None,
        *,
        paused: bool = False,
    ) -> None:
        """Show these chats.

        Args:
            chats: in the order for sorting by state.
            goodput: has the targets for the figures.
            paused: whether the engine is paused, so that running requests stand still.
        """
        self._chats = chats
        self._goodput, self._paused = goodput, paused
        if self.is_other(chats, goodput, paused):
            self._rearrange() if self._awaited else self._arrange()
            self.redraw()

    def set_filter(self, text: str) -> None:
        """Show only the rows with every word of `text`, ignoring case."""
        self.filter = text
        self._rearrange()

    @property
    def cursor(self) -> int:
        """Index of the row under the cursor."""
        return self._cursor.place

    @property
    def current(self) -> ChatRow | None:
        """The chat under the cursor."""
        return self._cursor.item

    def point_at(self, key: str) -> None:
        """Put the cursor on the chat of this key, in view as soon as there is a row for it."""
        self._cursor.key = self._awaited = key
        self._rearrange()

    @property
    def num_rows(self) -> int:
        return len(self._cursor.items)

    @property
    def page(self) -> int:
        return max(super().page - 1 - len(self._details), 0)  # one line is the head

    def action_step(self, rows: int) -> None:
        if self._cursor.go_to(self.cursor + rows) and (row := self.current):
            self.post_message(self.Highlighted(row))
        self.reveal(self.cursor)
        self.redraw()

    def action_choose(self) -> None:
        if row := self.current:
            self.post_message(self.Selected(row))

    def action_sort(self) -> None:
        shown = [name for name, _start, _width in self._columns.spans()]
        at = SORTS.index(self.sort) + 1
        self._sort_by(next(name for name in (*SORTS[at:], *SORTS) if name in shown))

    def action_reverse(self) -> None:
        self.descending = not self.descending
        self._rearrange()

    def action_filter(self) -> None:
        self._field.open(self.filter)

    def action_clear(self) -> None:
        self.set_filter("")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        # Without a filter, Esc is the screen's.
        return bool(self.filter) if action == "clear" else super().check_action(action, parameters)

    def compose(self) -> ComposeResult:
        yield self._field

    def redraw(self) -> None:
        super().redraw()
        if self._field.is_open:
            # It follows the slash in the title, whose count of rows changes with the text.
            x = (3 if self.framed else 0) + len(self._title_head())
            self._field.place(x, 0, min(cell_len(self.filter) + 1, self._filter_room))

    def on_resize(self) -> None:
        self.reveal(self.cursor)
        self.redraw()

    def on_click(self, event: events.Click) -> None:
        x = event.x - (2 if self.framed else 0)
        if event.y == 1:
            for name, start, width in self._columns.spans():
                if start <= x < start + width:
                    self._sort_by(name)
        elif 0 <= event.y - 2 < self.page and event.y - 2 + self.first < self.num_rows:
            self.action_step(event.y - 2 + self.first - self.cursor)
            self.action_choose()

    def title(self) -> str:
        text = self.filter
        if self._field.is_open:
            text = f"{text}_"[-self._filter_room :]
        arrow = self.glyphs.down if self.descending else self.glyphs.up
        sort = f"{self.keys['sort']} sort: {self.sort} {arrow}"
        return f"{self._title_head()}{text or 'filter'} · {sort}"

    def footer(self) -> str:
        """The row under the cursor in full, including text that columns may have truncated."""
        return self.current.in_full if self.current else ""

    def body(self, width: int, height: int) -> list[Line]:
        if not self.num_rows:
            return [self._head(width), self._empty(width)]
        cursor = self.cursor
        self.scroll(self.first)  # rows or lines may have become fewer
        details = self._details
        rows = range(self.first, min(self.first + height - 1 - len(details), self.num_rows))
        lines = [self._row(self._cursor.items[row], width, row == cursor) for row in rows]
        lines += [self.line(width) for _ in range(height - 1 - len(lines) - len(details))]
        lines += [self.line(width).add(text, self.palette.text) for text in details]
        return [self._head(width), *lines]

    @property
    def _details(self) -> list[str]:
        """Why the request under the cursor waits or how it failed, in separate lines if it does not
        fit into its row."""
        note = self.current.note if self.current else ""
        if not note or cell_len(note) <= self._columns.note:
            return []
        lines = textwrap.wrap(note, max(self.size.width - (4 if self.framed else 0), 1))
        # Not if they would take too many rows.
        return lines if len(lines) <= (self.size.height - 4) // 2 else []

    @property
    def _columns(self) -> SessionColumns:
        return SessionColumns.within(self.size.width - (4 if self.framed else 0))

    def _title_head(self) -> str:
        """The part of the title before the filter."""
        shown, total = self.num_rows, len(self._chats)
        theirs = sum(row.name.number.theirs for row in self._chats)
        number = f"{count(shown)} of {count(total)}"
        if shown == total:
            number = count(total - theirs) + (f" + {count(theirs)} elsewhere" if theirs else "")
        return f"Chats {number} · {self.keys['filter']} "

    @property
    def _filter_room(self) -> int:
        """The cells of the title for the filter during typing, with nothing after it."""
        return max(self.size.width - (5 if self.framed else 0) - len(self._title_head()), 1)

    def _typed(self) -> None:
        self.set_filter(self._field.value)

    def _left(self, how: Leaving) -> None:
        self.set_filter("" if how == "escape" else self.filter)

    def _sort_by(self, column: str) -> None:
        self.descending = not self.descending if column == self.sort else False
        self.sort = column
        self._rearrange()

    def _rearrange(self) -> None:
        """Filter and sort the rows again, with the cursor in view."""
        self._arrange()
        if (row := self.current) and row.key == self._awaited:
            self._awaited = ""
        self.reveal(self.cursor)
        self.redraw()

    def _arrange(self) -> None:
        """Filter and sort the rows. The cursor stays on its chat."""
        words = self.filter.casefold().split()
        rows = [row for row in self._chats if row.matches(words, row.mark(self._paused))]
        if self.sort == BY_STATE:
            if self.descending:
                rows.reverse()
        else:
            keys = {row.key: sort_key(row, self.sort) for row in rows}
            known = [row for row in rows if not keys[row.key][0]]
            unknown = [row for row in rows if keys[row.key][0]]
            known.sort(key=lambda row: keys[row.key][1:], reverse=self.descending)
            rows = known + unknown
        self._cursor.items = rows

    def _head(self, width: int) -> Line:
        line = self.line(width).add(" " * CURSOR_WIDTH, self.palette.muted)
        figures = {figure.name for figure in FIGURES}
        for name, _start, cells in self._columns.spans():
            style = self.palette.strong if name == self.sort else self.palette.muted
            line.cell(
                name if cells >= len(name) else "",
                cells,
                style,
                "right" if name in figures else "left",
            )
            line.add(" ", self.palette.muted)
        return line

    def _empty(self, width: int) -> Line:
        none = f"No chat matches {self.filter!r}; {self.keys['clear']} shows all."
        text = none if self.filter else "No chat yet."
        return self.line(width).add(shorten(text, width), self.palette.muted)

    def _row(self, row: ChatRow, width: int, current: bool) -> Line:
        palette, columns = self.palette, self._columns
        over = palette.cursor if current and self.has_focus_within else Style.null()
        view, mark = row.view, row.mark(self._paused)
        ended = mark in (Mark.DONE, Mark.CUT, Mark.STOPPED, Mark.FAILED)
        gap = palette.text + over
        muted = gap if over else palette.muted
        text = muted if ended else gap
        line = self.line(width)
        line.cell(self.glyphs.cursor if current else "", CURSOR_WIDTH, palette.strong + over)
        number = row.name.number
        sign = number.letter if number.letter != str(number) else ""
        style = gap if over else palette.owner(number)
        line.cell(str(number), ID_WIDTH - 3, style, "right").add(f" {sign:1}", style).add(" ", gap)
        priority = self._priority(view) if view else ""
        line.cell(priority + row.name.title, columns.title, text).add(" ", gap)
        if columns.source:
            line.cell(row.source, columns.source, muted).add(" ", gap)
        state = f"{self.glyphs.marks[mark]} {mark}"
        if view and view.preemptions:
            again = f" {self.glyphs.marks[Mark.PREEMPTED]}{view.preemptions}"
            state += again if len(state + again) <= columns.state else ""
        line.cell(
            state if columns.state > 1 else state[0], columns.state, palette.marks[mark] + over
        )
        note = row.note
        figures = columns.figures
        if note and not columns.note:
            figures = tuple(figure for figure in figures if figure.name == "queue")
        for figure in figures:
            value = figure.value(view) if view else None
            style = self._judge(value, figure, text) + over
            line.add(" ", gap).cell(figure.text(value), figure.width, style, "right")
        if note:
            style = palette.bad if mark is Mark.FAILED else palette.text
            line.add(" ", gap).cell(note, max(line.room, 0), style + over)
        return line.pad(gap)

    def _priority(self, view: RequestView) -> str:
        """The mark before the title if the request has another priority than 0."""
        if not view.priority:
            return ""
        arrow = self.glyphs.up if view.priority > 0 else self.glyphs.down
        return f"{arrow}{compact(abs(view.priority))} "

    def _judge(self, value: float | None, figure: Figure, fine: Style) -> Style:
        """The style of a figure: `fine` unless it is above its target."""
        if value is None or figure.target is None or self._goodput is None:
            return fine
        return self.palette.bad if value > figure.target(self._goodput) else fine
