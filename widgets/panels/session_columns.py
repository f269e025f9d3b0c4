"""SessionColumns: the columns of the session table, and the choice of those that fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from engine.api.snapshot import Goodput, RequestView
from widgets.figures import compact, duration
from widgets.panels.chat_row import ChatRow

CURSOR_WIDTH = 2
ID_WIDTH = 6
STATE_WIDTH = 11
SOURCE_WIDTH = 6
MIN_TITLE_WIDTH = 10
MAX_TITLE_WIDTH = 32
MIN_NOTE_WIDTH = 24
MAX_NOTE_WIDTH = 52


@dataclass(frozen=True, slots=True)
class Figure:
    """A column of figures.

    Attributes:
        name: the column's head.
        width: in cells.
        rank: if two columns do not both fit, the one with the larger rank is left out.
        value: returns the figure of a request; None if it has none.
        text: formats a figure.
        target: returns the value above which a figure is bad; None without a target.
    """

    name: str
    width: int
    rank: int
    value: Callable[[RequestView], float | None]
    text: Callable[[float | None], str]
    target: Callable[[Goodput], float] | None = None


FIGURES = (
    Figure("queue", 5, 3, lambda view: view.queue, duration),
    Figure("TTFT", 5, 1, lambda view: view.ttft, duration, lambda good: good.ttft_target),
    Figure("TPOT", 5, 2, lambda view: view.tpot, duration, lambda good: good.tpot_target),
    Figure("p99", 5, 5, lambda view: view.itl_p99, duration),
    Figure("tok", 5, 0, lambda view: view.output_tokens, compact),
    Figure("blk", 4, 4, lambda view: view.blocks or None, compact),
    Figure("shrd", 4, 7, lambda view: view.shared_blocks or None, compact),
    Figure("resv", 4, 8, lambda view: view.reserved_blocks or None, compact),
)
SOURCE_RANK = 6
LATE_RANK, LATE_TITLE_WIDTH = 5, 16
_BY_NAME = {figure.name: figure for figure in FIGURES}

BY_STATE = "state"
SORTS = (BY_STATE, "ID", "title", "src", *_BY_NAME)


def title_of(view: RequestView) -> str:
    """The shown title. It begins with the sender, if that is not the user of the screen."""
    origin, title = view.origin, view.origin.title or view.request_id
    return title if origin.source == "screen" else f"@{origin.user} {title}"


def sort_key(row: ChatRow, column: str) -> tuple[bool, float | str, int]:
    """The sort key of a row for `column`. Its first part says whether the row has no value: such
    rows come last in either order."""
    number = row.name.number
    if column in _BY_NAME:
        value = _BY_NAME[column].value(row.view) if row.view else None
        return value is None, value or 0, 0
    texts = {"title": row.name.title.casefold(), "src": row.source}
    return False, texts.get(column, number.theirs), number.value if column == "ID" else 0


@dataclass(frozen=True, slots=True)
class SessionColumns:
    """The columns of a table of one width.

    Attributes:
        title, source, state: the widths of these columns in cells; 0 if a column is left out.
        figures: the columns of figures that fit.
        note: the width in cells of the column for why a request waits or how it failed. If it is 0,
            the note is written over the figures.
    """

    title: int
    source: int
    state: int
    figures: tuple[Figure, ...]
    note: int

    @staticmethod
    @lru_cache(maxsize=64)
    def within(width: int) -> SessionColumns:
        """The columns that fit into `width` cells, by their ranks."""
        room = width - CURSOR_WIDTH - ID_WIDTH - MIN_TITLE_WIDTH
        state = STATE_WIDTH if room > STATE_WIDTH else 1
        room -= state + 1
        ranked = [(figure.rank, figure.width, figure) for figure in FIGURES]
        kept: list[Figure | None] = []  # None is the source
        for rank, cells, figure in sorted([*ranked, (SOURCE_RANK, SOURCE_WIDTH, None)], key=_rank):
            spare = 0
            if rank >= LATE_RANK:  # Such a column must leave the beginning of a title.
                spare = LATE_TITLE_WIDTH - MIN_TITLE_WIDTH
            if rank > SOURCE_RANK:  # And these must not shorten titles or notes.
                spare = MAX_TITLE_WIDTH - MIN_TITLE_WIDTH + MAX_NOTE_WIDTH
            if cells + spare >= room:
                break
            kept.append(figure)
            room -= cells + 1
        source = SOURCE_WIDTH if None in kept else 0
        title = MIN_TITLE_WIDTH + room
        note = title - MAX_TITLE_WIDTH - 1
        if note >= MIN_NOTE_WIDTH:
            title = MAX_TITLE_WIDTH
        else:
            note = 0
        figures = tuple(figure for figure in FIGURES if figure in kept)
        return SessionColumns(max(title, 1), source, state, figures, note)

    def spans(self) -> Iterator[tuple[str, int, int]]:
        """Name, first cell and width of each column, from left to right."""
        x = CURSOR_WIDTH
        fixed = (
            ("ID", ID_WIDTH - 1),
            ("title", self.title),
            ("src", self.source),
            (BY_STATE, self.state),
        )
        for name, width in (*fixed, *((figure.name, figure.width) for figure in self.figures)):
            if width:
                yield name, x, width
                x += width + 1


def _rank(column: tuple[int, int, Figure | None]) -> int:
    return column[0]
