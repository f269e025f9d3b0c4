"""SessionTable: shows every request with its state and figures, sorted and filtered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from rich.cells import cell_len
from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message

from engine.api.snapshot import Goodput, RequestView
from engine.api.waiting import in_words
from widgets.chat_name import ChatName
from widgets.chat_number import ChatNumber
from widgets.figures import compact, count
from widgets.glyphs import UNICODE, Glyphs, Mark, state_mark
from widgets.line import Line, shorten
from widgets.panels.field import Field, Leaving
from widgets.panels.list_cursor import ListCursor
from widgets.panels.scroll_panel import ScrollPanel, list_keys
from widgets.panels.session_columns import (
    BY_STATE,
    CURSOR_WIDTH,
    FIGURES,
    ID_WIDTH,
    MIN_TITLE_WIDTH,
    SORTS,
    Figure,
    SessionColumns,
    sort_key,
    title_of,
)


class SessionTable(ScrollPanel, can_focus=True):
    """A row for each request. The cursor stays on its request when rows move."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *list_keys("table"),
        Binding("enter", "choose", "Open", id="table.open"),
        Binding("s", "sort", "Sort", id="table.sort"),
        Binding("S", "reverse", "Reverse", key_display="S", id="table.reverse"),
        Binding("slash", "filter", "Filter", key_display="/", id="table.filter"),
    ]

    class Highlighted(Message):
        """The cursor went to another request."""

        def __init__(self, request_id: str, number: ChatNumber) -> None:
            super().__init__()
            self.request_id = request_id
            self.number = number

    class Selected(Message):
        """A request was chosen with Enter or a click."""

        def __init__(self, request_id: str, number: ChatNumber) -> None:
            super().__init__()
            self.request_id = request_id
            self.number = number

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self.sort = BY_STATE
        self.descending = False
        self.filter = ""
        self._field = Field(self._typed, self._left)
        self._requests: Sequence[RequestView] = ()
        self._names: Mapping[int, ChatName] = {}
        self._cursor = ListCursor[RequestView](lambda view: view.request_id)
        self._goodput: Goodput | None = None
        self._paused = False

    def show(
        self,
        requests: Sequence[RequestView],
        names: Mapping[int, ChatName],
        goodput: Goodput | None = None,
        *,
        paused: bool = False,
    ) -> None:
        """Show these requests.

        Args:
            requests: in the order that sorting by state gives them.
            names: what their chats are called, by the ordinals of the requests.
            goodput: has the targets by which figures are judged.
            paused: whether the engine is paused, so that what runs stands still.
        """
        self._requests, self._names = requests, names
        self._goodput, self._paused = goodput, paused
        self._arrange()
        self.redraw()

    def set_filter(self, text: str) -> None:
        """Show only the rows that contain every word of `text`, in whatever case."""
        self.filter = text
        self._rearrange()

    @property
    def cursor(self) -> int:
        """Index of the row that the cursor is on."""
        return self._cursor.place

    @property
    def current(self) -> RequestView | None:
        """The request that the cursor is on."""
        return self._cursor.item

    @property
    def num_rows(self) -> int:
        return len(self._cursor.items)

    @property
    def page(self) -> int:
        return max(super().page - 1, 0)  # one line is the head

    def action_step(self, rows: int) -> None:
        if self._cursor.go_to(self.cursor + rows) and (view := self.current):
            self.post_message(self.Highlighted(view.request_id, self._number(view)))
        self.reveal(self.cursor)
        self.redraw()

    def action_choose(self) -> None:
        if view := self.current:
            self.post_message(self.Selected(view.request_id, self._number(view)))

    def action_sort(self) -> None:
        self._sort_by(SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)])

    def action_reverse(self) -> None:
        self.descending = not self.descending
        self._rearrange()

    def action_filter(self) -> None:
        self._field.open(self.filter)

    def compose(self) -> ComposeResult:
        yield self._field

    def redraw(self) -> None:
        super().redraw()
        if self._field.is_open:
            # It stands after the slash of the title, whose count of rows changes with the text.
            x = (3 if self.framed else 0) + len(self._title_head())
            self._field.place(x, 0, min(cell_len(self.filter) + 1, self._filter_room))

    def on_resize(self) -> None:
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
        return f"{self._title_head()}{text or 'filter'} · s sort: {self.sort} {arrow}"

    def footer(self) -> str:
        """The row under the cursor in full, with what the columns may have cut off."""
        view = self.current
        if view is None:
            return ""
        note, title = _note(view), title_of(view)
        if note:
            title = shorten(title, MIN_TITLE_WIDTH)  # so that the note may be seen whole
        parts = [
            f"{self._number(view)} {title}",
            note,
            f"priority {count(view.priority)}" if view.priority else "",
            f"prompt {count(view.prompt_tokens)}, {count(view.cached_tokens)} cached",
            f"output {count(view.output_tokens)}/{count(view.max_output_tokens)}",
            _blocks(view),
            f"preempted {view.preemptions}×" if view.preemptions else "",
        ]
        return " · ".join(part for part in parts if part)

    def body(self, width: int, height: int) -> list[Line]:
        if not self.num_rows:
            return [self._head(width), self._empty(width)]
        cursor = self.cursor
        self.scroll(self.first)  # rows or lines may have become fewer
        rows = range(self.first, min(self.first + height - 1, self.num_rows))
        return [
            self._head(width),
            *(self._row(self._cursor.items[row], width, row == cursor) for row in rows),
        ]

    @property
    def _columns(self) -> SessionColumns:
        return SessionColumns.within(self.size.width - (4 if self.framed else 0))

    def _title_head(self) -> str:
        """The part of the title that stands before the filter."""
        shown, total = self.num_rows, len(self._requests)
        number = count(total) if shown == total else f"{count(shown)} of {count(total)}"
        return f"Sessions {number} · / "

    @property
    def _filter_room(self) -> int:
        """How many cells the title has for the filter while it is typed, with nothing after it."""
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
        """Arrange the rows as the user wants them now, with the cursor in view."""
        self._arrange()
        self.reveal(self.cursor)
        self.redraw()

    def _arrange(self) -> None:
        """Filter and sort the rows. The cursor stays on its request."""
        words = self.filter.casefold().split()
        rows = [v for v in self._requests if all(w in self._haystack(v) for w in words)]
        if self.sort == BY_STATE:
            if self.descending:
                rows.reverse()
        else:
            keys = {v.ordinal: sort_key(v, self._number(v), self.sort) for v in rows}
            known = [v for v in rows if not keys[v.ordinal][0]]
            unknown = [v for v in rows if keys[v.ordinal][0]]
            known.sort(key=lambda v: keys[v.ordinal], reverse=self.descending)
            rows = known + unknown
        self._cursor.items = rows

    def _number(self, view: RequestView) -> ChatNumber:
        return self._names[view.ordinal].number

    def _haystack(self, view: RequestView) -> str:
        """The text that the filter looks through."""
        origin = view.origin
        mark = state_mark(view, self._paused)
        words = (title_of(view), view.request_id, origin.source, origin.user, mark)
        return f"{self._number(view)} {' '.join(words)}".casefold()

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
        text = f"No request matches {self.filter!r}." if self.filter else "No request has come yet."
        return self.line(width).add(shorten(text, width), self.palette.muted)

    def _row(self, view: RequestView, width: int, current: bool) -> Line:
        palette, columns = self.palette, self._columns
        over = palette.cursor if current and self.has_focus_within else Style.null()
        mark = state_mark(view, self._paused)
        ended = mark in (Mark.DONE, Mark.CUT, Mark.STOPPED, Mark.FAILED)
        gap = palette.text + over
        muted = gap if over else palette.muted
        text = muted if ended else gap
        line = self.line(width)
        line.cell(self.glyphs.cursor if current else "", CURSOR_WIDTH, palette.strong + over)
        number = self._number(view)
        line.add(number.letter, palette.owner(number) + over)
        line.cell(str(number), ID_WIDTH - 2, muted, "right").add(" ", gap)
        line.cell(self._priority(view) + title_of(view), columns.title, text).add(" ", gap)
        if columns.source:
            line.cell(view.origin.source, columns.source, muted).add(" ", gap)
        again = f" {self.glyphs.marks[Mark.PREEMPTED]}{view.preemptions}"
        state = f"{self.glyphs.marks[mark]} {mark}"
        if view.preemptions and len(state + again) <= columns.state:
            state += again
        line.cell(
            state if columns.state > 1 else state[0], columns.state, palette.marks[mark] + over
        )
        note = _note(view)
        figures = columns.figures
        if note and not columns.note:
            figures = tuple(figure for figure in figures if figure.name == "queue")
        for figure in figures:
            value = figure.value(view)
            style = self._judge(value, figure, text) + over
            line.add(" ", gap).cell(figure.text(value), figure.width, style, "right")
        if note:
            style = palette.bad if mark is Mark.FAILED else palette.text
            line.add(" ", gap).cell(note, max(line.room, 0), style + over)
        return line.pad(gap)

    def _priority(self, view: RequestView) -> str:
        """What stands before the title if the request has another priority than 0."""
        if not view.priority:
            return ""
        arrow = self.glyphs.up if view.priority > 0 else self.glyphs.down
        return f"{arrow}{compact(abs(view.priority))} "

    def _judge(self, value: float | None, figure: Figure, fine: Style) -> Style:
        """The style of a figure: `fine` unless it is above its target."""
        if value is None or figure.target is None or self._goodput is None:
            return fine
        return self.palette.bad if value > figure.target(self._goodput) else fine


def _note(view: RequestView) -> str:
    """Why a request waits or how it failed; empty otherwise."""
    return in_words(view.wait) or view.error


def _blocks(view: RequestView) -> str:
    """How many blocks a request holds, if any, and where, or how many are shared or not in use."""
    if view.host_blocks:
        return f"{count(view.host_blocks)} blk swapped"
    if not view.blocks:
        return ""
    parts = [f"{count(view.blocks)} blk"]
    parts += [f"{count(view.shared_blocks)} shared"] if view.shared_blocks else []
    parts += [f"{count(view.reserved_blocks)} reserved"] if view.reserved_blocks else []
    return ", ".join(parts)
