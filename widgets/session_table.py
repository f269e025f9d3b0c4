"""SessionTable: every request with its state and figures, sorted and filtered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from engine.snapshot import Goodput, RequestView
from widgets.figures import compact, count
from widgets.glyphs import UNICODE, Glyphs, Mark, letter, state_mark
from widgets.line import Line, shorten
from widgets.scroll_panel import ScrollPanel
from widgets.session_columns import (
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
    """One row a request. The cursor stays with its request when rows move."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", show=False, id="table.up"),
        Binding("down", "move(1)", "Down", show=False, id="table.down"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="table.page_up"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="table.page_down"),
        Binding("home", "move(-1_000_000)", "First", show=False, id="table.first"),
        Binding("end", "move(1_000_000)", "Last", show=False, id="table.last"),
        Binding("enter", "choose", "Open", id="table.open"),
        Binding("s", "sort", "Sort", id="table.sort"),
        Binding("S", "reverse", "Reverse", key_display="S", id="table.reverse"),
        Binding("slash", "filter", "Filter", key_display="/", id="table.filter"),
    ]

    class Highlighted(Message):
        """The cursor went to another request."""

        def __init__(self, request_id: str, ordinal: int) -> None:
            super().__init__()
            self.request_id = request_id
            self.ordinal = ordinal

    class Selected(Message):
        """A request was chosen with Enter or a click."""

        def __init__(self, request_id: str, ordinal: int) -> None:
            super().__init__()
            self.request_id = request_id
            self.ordinal = ordinal

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self.sort = BY_STATE
        self.descending = False
        self.filter = ""
        self._typing = False
        self._requests: Sequence[RequestView] = ()
        self._rows: list[RequestView] = []
        self._goodput: Goodput | None = None
        self._paused = False
        self._cursor_id = ""

    def show(
        self,
        requests: Sequence[RequestView],
        goodput: Goodput | None = None,
        *,
        paused: bool = False,
    ) -> None:
        """Show these requests; as they come is their order by state.

        Args:
            goodput: has the targets that figures are judged by.
            paused: nothing is planned, so that what runs stands still.
        """
        self._requests, self._goodput, self._paused = requests, goodput, paused
        self._arrange()
        self.redraw()

    def set_filter(self, text: str) -> None:
        """Keep the rows that contain every word of `text`, in whatever case."""
        self.filter = text
        self._rearrange()

    @property
    def cursor(self) -> int:
        """Index of the row that the cursor is on."""
        ids = (i for i, view in enumerate(self._rows) if view.request_id == self._cursor_id)
        return next(ids, 0)

    @property
    def current(self) -> RequestView | None:
        """The request that the cursor is on."""
        return self._rows[self.cursor] if self._rows else None

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    @property
    def page(self) -> int:
        return max(super().page - 1, 0)  # one line is the head

    def action_move(self, rows: int) -> None:
        if not self._rows:
            return
        row = max(0, min(self.cursor + rows, len(self._rows) - 1))
        view = self._rows[row]
        if view.request_id != self._cursor_id:
            self._cursor_id = view.request_id
            self.post_message(self.Highlighted(view.request_id, view.ordinal))
        self.reveal(row)
        self.redraw()

    def action_page(self, pages: int) -> None:
        self.action_move(pages * max(self.page - 1, 1))

    def action_choose(self) -> None:
        if view := self.current:
            self.post_message(self.Selected(view.request_id, view.ordinal))

    def action_sort(self) -> None:
        self._sort_by(SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)])

    def action_reverse(self) -> None:
        self.descending = not self.descending
        self._rearrange()

    def action_filter(self) -> None:
        self._typing = True
        self.redraw()

    def on_key(self, event: events.Key) -> None:
        """While a filter is typed, characters are text and no bindings."""
        if not self._typing:
            return
        if event.key in ("enter", "escape"):
            self._typing = False
            self.set_filter(self.filter if event.key == "enter" else "")
        elif event.key == "backspace":
            self.set_filter(self.filter[:-1])
        elif event.character and event.is_printable:
            self.set_filter(self.filter + event.character)
        else:
            return
        event.stop()
        event.prevent_default()

    def on_blur(self) -> None:
        self._typing = False
        self.redraw()

    def on_click(self, event: events.Click) -> None:
        x = event.x - (2 if self.framed else 0)
        if event.y == 1:
            for name, start, width in self._columns.spans():
                if start <= x < start + width:
                    self._sort_by(name)
        elif 0 <= event.y - 2 < self.page and event.y - 2 + self.first < len(self._rows):
            self.action_move(event.y - 2 + self.first - self.cursor)
            self.action_choose()

    def title(self) -> str:
        shown, total = len(self._rows), len(self._requests)
        number = count(total) if shown == total else f"{count(shown)} of {count(total)}"
        text = self.filter + ("_" if self._typing else "")
        arrow = self.glyphs.down if self.descending else self.glyphs.up
        return f"Sessions {number} · / {text or 'filter'} · s sort: {self.sort} {arrow}"

    def footer(self) -> str:
        """The row under the cursor in full: what the columns may have cut off."""
        view = self.current
        if view is None:
            return ""
        note, title = _note(view), title_of(view)
        if note:
            title = shorten(title, MIN_TITLE_WIDTH)  # the note is what is wanted whole
        parts = [
            f"{view.ordinal} {title}",
            note,
            f"priority {count(view.priority)}" if view.priority else "",
            f"prompt {count(view.prompt_tokens)}, {count(view.cached_tokens)} cached",
            f"output {count(view.output_tokens)}/{count(view.max_output_tokens)}",
            _blocks(view),
            f"preempted {view.preemptions}×" if view.preemptions else "",
        ]
        return " · ".join(part for part in parts if part)

    def body(self, width: int, height: int) -> list[Line]:
        if not self._rows:
            return [self._head(width), self._empty(width)]
        cursor = self.cursor
        self.scroll(self.first)  # rows or lines may have become fewer
        rows = range(self.first, min(self.first + height - 1, len(self._rows)))
        return [
            self._head(width),
            *(self._row(self._rows[row], width, row == cursor) for row in rows),
        ]

    @property
    def _columns(self) -> SessionColumns:
        return SessionColumns.within(self.size.width - (4 if self.framed else 0))

    def _sort_by(self, column: str) -> None:
        self.descending = not self.descending if column == self.sort else False
        self.sort = column
        self._rearrange()

    def _rearrange(self) -> None:
        """Arrange the rows as the user now wants them, with the cursor in view."""
        self._arrange()
        self.reveal(self.cursor)
        self.redraw()

    def _arrange(self) -> None:
        """Filter and sort, leaving the cursor on its request."""
        words = self.filter.casefold().split()
        rows = [v for v in self._requests if all(w in _haystack(v, self._paused) for w in words)]
        if self.sort == BY_STATE:
            if self.descending:
                rows.reverse()
        else:
            known = [v for v in rows if not sort_key(v, self.sort)[0]]
            unknown = [v for v in rows if sort_key(v, self.sort)[0]]
            known.sort(key=lambda v: sort_key(v, self.sort), reverse=self.descending)
            rows = known + unknown
        self._rows = rows

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
        over = palette.cursor if current and self.has_focus else Style.null()
        mark = state_mark(view, self._paused)
        ended = mark in (Mark.DONE, Mark.CUT, Mark.STOPPED, Mark.FAILED)
        gap = palette.text + over
        muted = gap if over else palette.muted
        text = muted if ended else gap
        line = self.line(width)
        line.cell(self.glyphs.cursor if current else "", CURSOR_WIDTH, palette.strong + over)
        line.add(letter(view.ordinal), palette.owner(view.ordinal) + over)
        line.cell(str(view.ordinal), ID_WIDTH - 2, muted, "right").add(" ", gap)
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
            figures = tuple(figure for figure in figures if figure.name == "q ms")
        for figure in figures:
            value = figure.value(view)
            style = self._judge(value, figure, text) + over
            line.add(" ", gap).cell(figure.text(value), figure.width, style, "right")
        if note:
            style = palette.bad if mark is Mark.FAILED else palette.text
            line.add(" ", gap).cell(note, max(line.room, 0), style + over)
        return line.pad(gap)

    def _priority(self, view: RequestView) -> str:
        """What stands before the title of a request that goes before others, or after them."""
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
    """Why a request waits, or how it failed."""
    return view.wait_reason or view.error


def _blocks(view: RequestView) -> str:
    """What a request holds, if anything, and what of it is not its alone or not in use."""
    if not view.blocks:
        return ""
    parts = [f"{count(view.blocks)} blk"]
    parts += [f"{count(view.shared_blocks)} shared"] if view.shared_blocks else []
    parts += [f"{count(view.reserved_blocks)} reserved"] if view.reserved_blocks else []
    return ", ".join(parts)


def _haystack(view: RequestView, paused: bool) -> str:
    """What the filter looks through."""
    origin = view.origin
    mark = state_mark(view, paused)
    words = (title_of(view), view.request_id, origin.source, origin.user, mark)
    return f"{view.ordinal} {' '.join(words)}".casefold()
