"""KvMap: the KV pool block by block; used blocks have the letters of their chats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size

from engine.api.block_map import BlockMap, BlockSegment, BlockState, BlockView, PinView, Sharing
from engine.api.glossary import glosses
from widgets.chat_number import ChatName, ChatNumber
from widgets.figures import count, percent
from widgets.glyphs import UNICODE, Glyphs
from widgets.line import Line, shorten, shorten_parts
from widgets.panels.kv_cells import KvCells, rows_wanted
from widgets.panels.kv_notes import KvNotes
from widgets.panels.panel import Panel

CURSOR = Style(reverse=True, underline=True)
SELECTED = Style(reverse=True)

MIN_HEIGHT = 4
_MIN_HEIGHT_FOR_NOTES = 4
_MOST_NOTES = 2


class KvMap(Panel, can_focus=True):
    """The pool as cells in reading order (`KvCells`). Arrow keys and the mouse pick a cell, which
    the lines below describe; the cursor stays on its block while the pool changes.

    Attributes:
        cursor: the first block of the picked cell.
        selected: the chat whose blocks are highlighted, including shared ones.
    """

    GLOSS: ClassVar[Mapping[str, str]] = glosses(
        *("KV", "blk", "shared", "reserved", "cached", "pinned", "free", "waste")
    )

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1, 0)", "Block to the left", show=False, id="kv.left"),
        Binding("right", "move(1, 0)", "Block to the right", show=False, id="kv.right"),
        Binding("up", "move(0, -1)", "Block above", show=False, id="kv.up"),
        Binding(
            "down",
            "move(0, 1)",
            "Pick block",
            tooltip="Block below",
            key_display="↑↓←→",
            id="kv.down",
        ),
        Binding("home", "first", "First block", show=False, id="kv.first"),
        Binding("end", "last", "Last block", show=False, id="kv.last"),
    ]

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self.cursor = 0
        self.selected: ChatNumber | None = None
        self._blocks: BlockMap | None = None
        self._wanted = 0
        self._block_size: int | None = None
        self._waste: float | None = None
        self._kv_notes = KvNotes()
        self._cells: KvCells | None = None

    def show(
        self,
        blocks: BlockMap,
        names: Mapping[int, ChatName],
        block_size: int | None = None,
        waste: float | None = None,
        sharing: Sequence[Sharing] = (),
        pins: Sequence[PinView] = (),
        detail: BlockView | None = None,
    ) -> None:
        """Show the pool.

        Args:
            blocks: the state of each block, and its holders.
            names: the names of the requests' chats, by the requests' ordinals. Other requests may
                hold blocks too, such as one that ended in a batch that continues.
            block_size: token slots in a block, for the title.
            waste: the share of allocated token slots that were unused in the last steps.
            sharing: which requests share how many blocks, most blocks first.
            pins: the pinned prefixes.
            detail: the details of the `wanted` block, if known.
        """
        self._blocks, self._block_size, self._waste = blocks, block_size, waste
        # The previous detail stays until the next one is known, so that lines do not flicker.
        detail = detail or (self._kv_notes.detail if self.has_focus else None)
        self._kv_notes = KvNotes(names, sharing, pins, detail)
        wanted = self.wanted_height(self.size.width)
        if wanted != self._wanted and self.styles.is_auto_height:
            self._wanted = wanted
            self.refresh(layout=True)
        if self.is_other(blocks, block_size, waste, self._kv_notes):
            self.redraw()

    @property
    def wanted(self) -> int | None:
        """The picked block, whose details are requested; None while the panel has no focus."""
        return self.cursor if self.has_focus and self.is_on_screen else None

    def select(self, number: ChatNumber | None) -> None:
        """Highlight the blocks of one chat, or of none."""
        if number != self.selected:
            self.selected = number
            self.redraw()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        # The grid asks for the width of one column, though the map may have several.
        return self.wanted_height(self.size.width or width)

    def wanted_height(self, width: int) -> int:
        """How many lines the panel can use well in so many columns: frame, cells and notes."""
        if self._blocks is None:
            return MIN_HEIGHT
        rows = rows_wanted(self._blocks, width - 4)
        return 2 + rows + self._num_notes(rows + 2 + _MOST_NOTES)

    def action_move(self, columns: int, rows: int) -> None:
        if self._cells is not None:
            self._go_to(self._place + columns + rows * self._cells.columns)

    def action_first(self) -> None:
        self._go_to(0)

    def action_last(self) -> None:
        self._go_to(self._num_cells - 1)

    def on_click(self, event: events.Click) -> None:
        x, y = (event.x - 2, event.y - 1) if self.framed else (event.x, event.y - 1)
        if self._cells is not None and y >= 0 and 0 <= x < self._cells.columns * self._cells.span:
            self._go_to(y * self._cells.columns + x // self._cells.span)

    def title(self) -> str:
        blocks = self._blocks
        if blocks is None:
            return "KV"
        size = f"×{self._block_size}" if self._block_size else ""
        name = f"KV {count(blocks.num_blocks)} blk{size}"
        parts = [name, f"used {percent(blocks.used / blocks.num_blocks)}"]
        if self._waste is not None and blocks.used:
            parts.append(f"waste {percent(self._waste)}")
        some = (
            ("reserved", blocks.reserved),
            ("shared", blocks.shared),
            ("cached", blocks.cached),
            ("pinned", blocks.pinned),
        )
        parts += [f"{word} {percent(n / blocks.num_blocks)}" for word, n in some if n]
        parts.append(f"free {percent(blocks.free / blocks.num_blocks)}")
        if blocks.host_blocks:
            parts.append(f"host {percent(blocks.host_used / blocks.host_blocks)}")
        if blocks.snapshots:
            parts.append(f"states {count(blocks.snapshots_kept)}/{count(blocks.snapshots)}")
        if self._cells is not None and self._cells.largest > 1:
            parts.append(f"a cell ≤ {count(self._cells.largest)} blk")
        return " · ".join(parts)

    def draw(self, width: int, height: int) -> list[Line]:
        # The map is fitted before the title is drawn, which has the number of blocks in a cell.
        self._fit(width - 4 if self.framed else width, height - (2 if self.framed else 1))
        return super().draw(width, height)

    def body(self, width: int, height: int) -> list[Line]:
        if self._cells is None:
            return [self.line(width).add(shorten("No pool yet.", width), self.palette.muted)]
        lines = self._cell_lines(self._cells, width)
        notes = self._notes(width, height)
        lines += [self.line(width) for _ in range(height - len(notes) - len(lines))]
        return lines + notes

    def _cell_lines(self, cells: KvCells, width: int) -> list[Line]:
        looks: dict[tuple[str, tuple[int, ...], int], tuple[str, Style]] = {}
        glyphs, styles = [], []
        for cell in cells.cells:
            level = self._level(cell)
            key = cell.state, cell.holders, level
            if key not in looks:
                looks[key] = self._render_cell(cell, level)
            glyph, style = looks[key]
            glyphs.append(glyph)
            styles.append(style)
        if self.has_focus:
            styles[self._place] += CURSOR
        wide = {glyph: self._wide(glyph, cells.span) for glyph in set(glyphs)}
        lines = []
        for start in range(0, len(glyphs), cells.columns):
            line = self.line(width)
            stop = min(start + cells.columns, len(glyphs))
            for first, end in _runs(styles, start, stop):
                text = "".join([wide[glyph] for glyph in glyphs[first:end]])
                line.segments.append(Segment(text, styles[first]))
            line.room -= (stop - start) * cells.span
            lines.append(line)
        return lines

    def _wide(self, glyph: str, span: int) -> str:
        """A cell of so many columns. A blank separates it from the next one; the sign of a free
        cell is not repeated."""
        signs = 1 if glyph == self.glyphs.free else _room(span) // len(glyph)
        return (glyph * signs).ljust(span)

    @property
    def _num_cells(self) -> int:
        return 0 if self._cells is None else len(self._cells.cells)

    @property
    def _place(self) -> int:
        """The index of the picked cell."""
        return 0 if self._cells is None else self._cells.at(self.cursor)

    def _go_to(self, place: int) -> None:
        """Pick a cell, if there is one at this index."""
        if self._cells is not None and 0 <= place < self._num_cells:
            self.cursor = self._cells.cells[place].first
            self.redraw()

    def _fit(self, width: int, height: int) -> None:
        """Lay the pool out in the available cells. The last lines are reserved for the notes."""
        if self._blocks is not None:
            rows = max(height - self._num_notes(height), 1)
            self._cells = KvCells.fit(self._blocks, width, rows)

    def _level(self, cell: BlockSegment) -> int:
        """The level that shows the share of its state in a cell of several states; -1 in all
        others."""
        if not cell.counts or cell.count(cell.state) == cell.blocks:
            return -1
        levels = len(self.glyphs.part)
        return min(cell.count(cell.state) * levels // cell.blocks, levels - 1)

    def _render_cell(self, cell: BlockSegment, level: int) -> tuple[str, Style]:
        """Glyph and style of a cell."""
        glyphs, palette = self.glyphs, self.palette
        names = self._kv_notes.names
        numbers = [names[who].number for who in cell.holders if who in names]
        over = SELECTED if self.selected in numbers else Style.null()
        match cell.state:
            case BlockState.FREE:
                glyph, style = glyphs.free, palette.muted
            case BlockState.CACHED:
                glyph, style = glyphs.cached, palette.cached
            case BlockState.PINNED:
                glyph, style = glyphs.pinned, palette.pinned
            case BlockState.SHARED:
                glyph, style = glyphs.shared, palette.shared
            case _ if not numbers:
                glyph, style = glyphs.unknown, palette.text
            case _:
                shown = self.selected if self.selected in numbers else None
                number = shown or numbers[0]
                reserved = cell.state is BlockState.RESERVED
                glyph = glyphs.reserved if reserved else self._sign(number)
                # Blocks of several chats have no chat's colour.
                style = palette.owner(number) if len(set(numbers)) == 1 else palette.strong
        return glyphs.part[level] if level >= 0 else glyph, style + over

    def _sign(self, number: ChatNumber) -> str:
        """The sign of a chat in a cell: AB for one of another front end, if it fits."""
        whole, span = str(number), self._cells.span if self._cells else 1
        return whole if number.theirs and len(whole) <= _room(span) else number.letter

    def _num_notes(self, height: int) -> int:
        """The number of lines below the cells: the legend, and a line on sharing and pins if there
        are any and it fits."""
        notes = self._kv_notes
        said = bool(notes.sharing or notes.pins or (notes.detail and self.has_focus))
        said = said and height >= _MIN_HEIGHT_FOR_NOTES
        return 0 if height <= 2 else 2 if said else 1

    def _notes(self, width: int, height: int) -> list[Line]:
        palette, about = self.palette, self._kv_notes
        assert self._blocks is not None
        assert self._cells is not None
        if self.has_focus:
            first, rest = _two_lines(self._inspected(), width)
            more = self.line(width).cell(rest, width, palette.muted)
        else:
            legend = about.legend(self._blocks, self._cells.cells, self.glyphs)
            first = shorten_parts(legend, width)
            style = palette.warn if about.has_broken_pin else palette.muted
            more = self.line(width).add(shorten_parts(about.of_pool(), width), style)
        notes = [self.line(width).add(first, palette.muted), more]
        return notes[: self._num_notes(height)]

    def _inspected(self) -> list[str]:
        """The state of the picked cell, its holders, and the details of its first block."""
        assert self._cells is not None
        cell = self._cells.cells[self._place]
        return [*self._kv_notes.of_cell(cell), *self._kv_notes.of_block(cell)]


def _room(span: int) -> int:
    """How many columns of a cell's span its sign fills; the others are blank."""
    return max(span - 1, 1)


def _two_lines(parts: Sequence[str], width: int) -> tuple[str, str]:
    """As many parts as fit into one line, and the rest."""
    fit = 1
    while fit < len(parts) and cell_len(" · ".join(parts[: fit + 1])) <= width:
        fit += 1
    return shorten(" · ".join(parts[:fit]), width), " · ".join(parts[fit:])


def _runs(styles: Sequence[Style], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Ranges of one style within [start, stop).

    Styles are compared by identity: comparing them by value took half of the time for a fragmented
    pool.
    """
    first = start
    for i in range(start + 1, stop):
        if styles[i] is not styles[first]:
            yield first, i
            first = i
    yield first, stop
