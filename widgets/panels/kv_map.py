"""KvMap: shows the KV pool block by block; used blocks have the letters of their sessions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType

from engine.api.block_map import BlockMap, BlockState, PinView, Sharing
from widgets.chat_number import ChatNumber
from widgets.figures import count, percent
from widgets.glyphs import UNICODE, Glyphs
from widgets.line import Line, shorten, shorten_parts
from widgets.panels.panel import Panel

CURSOR = Style(reverse=True, underline=True)
SELECTED = Style(reverse=True)

_WORDS = {
    BlockState.SHARED: "shared",
    BlockState.USED: "used",
    BlockState.RESERVED: "reserved and not yet used",
    BlockState.PINNED: "pinned: held by nobody, never evicted",
    BlockState.CACHED: "cached, evictable",
    BlockState.FREE: "free",
}
_MIN_HEIGHT_FOR_NOTES = 5


class KvMap(Panel, can_focus=True):
    """The pool as cells in reading order. Arrow keys inspect a cell.

    If the panel has fewer cells than the pool, neighbouring ones are merged.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1, 0)", "Inspect", show=False, id="kv.left"),
        Binding("right", "move(1, 0)", "Inspect", show=False, id="kv.right"),
        Binding("up", "move(0, -1)", "Inspect", show=False, id="kv.up"),
        Binding("down", "move(0, 1)", "Inspect", show=False, id="kv.down"),
        Binding("home", "first", "First block", show=False, id="kv.first"),
        Binding("end", "last", "Last block", show=False, id="kv.last"),
    ]

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self.cursor = 0
        self.selected: ChatNumber | None = None
        self._blocks: BlockMap | None = None
        self._numbers: Mapping[int, ChatNumber] = {}
        self._block_size: int | None = None
        self._waste: float | None = None
        self._sharing: Sequence[Sharing] = ()
        self._pins: Sequence[PinView] = ()
        self._columns = 1
        self._cells: BlockMap | None = None

    def show(
        self,
        blocks: BlockMap,
        numbers: Mapping[int, ChatNumber],
        block_size: int | None = None,
        waste: float | None = None,
        sharing: Sequence[Sharing] = (),
        pins: Sequence[PinView] = (),
    ) -> None:
        """Show the pool.

        Args:
            blocks: the state of each block or cell, and who holds it.
            numbers: the numbers of sessions, by the ordinals of the requests that are shown. Others
                may hold blocks too, such as a request that ended in a batch which goes on.
            block_size: token slots in a block, for the title.
            waste: the share of given token slots that were unused in the last steps.
            sharing: which requests share how many blocks, the most blocks first.
            pins: the prefixes that are pinned.
        """
        self._blocks, self._numbers, self._block_size = blocks, numbers, block_size
        self._waste, self._sharing, self._pins = waste, sharing, pins
        self.redraw()

    def select(self, number: ChatNumber | None) -> None:
        """Highlight the blocks of one session, or of none."""
        if number != self.selected:
            self.selected = number
            self.redraw()

    def action_move(self, columns: int, rows: int) -> None:
        self._go_to(self.cursor + columns + rows * self._columns)

    def action_first(self) -> None:
        self._go_to(0)

    def action_last(self) -> None:
        self._go_to(self._num_cells - 1)

    def on_click(self, event: events.Click) -> None:
        x, y = (event.x - 2, event.y - 1) if self.framed else (event.x, event.y - 1)
        if 0 <= x < self._columns and y >= 0:
            self._go_to(y * self._columns + x)

    def title(self) -> str:
        blocks = self._blocks
        if blocks is None:
            return "KV"
        size = f"×{self._block_size}" if self._block_size else ""
        name = f"KV {count(blocks.num_blocks)} blk{size}"
        parts = [name, f"used {percent(blocks.used / blocks.num_blocks)}"]
        if self._waste is not None:
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
        if self._cells is not None and self._cells.blocks_per_cell > 1:
            parts.append(f"1 cell = {self._cells.blocks_per_cell} blk")
        return " · ".join(parts)

    def draw(self, width: int, height: int) -> list[Line]:
        # The map is fitted before the title is drawn, which says how many blocks a cell is.
        self._fit(width - 4 if self.framed else width, height - (2 if self.framed else 1))
        return super().draw(width, height)

    def body(self, width: int, height: int) -> list[Line]:
        cells, palette = self._cells, self.palette
        if cells is None:
            return [self.line(width).add(shorten("No pool yet.", width), palette.muted)]
        kinds = list(zip(cells.states, cells.owners, strict=True))
        looks = {kind: self._look(*kind) for kind in set(kinds)}
        glyphs = "".join([looks[kind][0] for kind in kinds])
        styles = [looks[kind][1] for kind in kinds]
        if self.has_focus:
            styles[self.cursor] += CURSOR
        lines = []
        for start in range(0, len(glyphs), width):
            line = self.line(width)
            stop = min(start + width, len(glyphs))
            for first, end in _runs(styles, start, stop):
                line.segments.append(Segment(glyphs[first:end], styles[first]))
            line.room -= stop - start
            lines.append(line)
        notes = self._notes(cells, width, height)
        lines += [self.line(width) for _ in range(height - len(notes) - len(lines))]
        return lines + notes

    @property
    def _num_cells(self) -> int:
        return 0 if self._cells is None else len(self._cells.states)

    def _go_to(self, cell: int) -> None:
        """Inspect a cell, if there is one at this place."""
        if 0 <= cell < self._num_cells:
            self.cursor = cell
            self.redraw()

    def _fit(self, width: int, height: int) -> None:
        """Lay the pool out in the cells that there are. The last lines are kept for the notes."""
        self._columns = max(width, 1)
        if self._blocks is not None:
            room = self._columns * max(height - self._num_notes(height), 1)
            self._cells = self._blocks.within(room)
            self.cursor = min(self.cursor, len(self._cells.states) - 1)

    def _look(self, state: str, owner: int) -> tuple[str, Style]:
        """Glyph and style of a cell."""
        glyphs, palette = self.glyphs, self.palette
        match state:
            case BlockState.FREE:
                return glyphs.free, palette.muted
            case BlockState.CACHED:
                return glyphs.cached, palette.cached
            case BlockState.PINNED:
                return glyphs.pinned, palette.pinned
            case BlockState.SHARED:
                return glyphs.shared, palette.shared
        number = self._numbers.get(owner)
        if number is None:
            return glyphs.unknown, palette.text
        style = palette.owner(number)
        if number == self.selected:
            style += SELECTED
        return glyphs.reserved if state == BlockState.RESERVED else number.letter, style

    def _num_notes(self, height: int) -> int:
        """How many lines stand below the cells: the legend, and a line on sharing and pins if there
        are any and it fits."""
        said = bool(self._sharing or self._pins) and height >= _MIN_HEIGHT_FOR_NOTES
        return 0 if height <= 2 else 2 if said else 1

    def _notes(self, cells: BlockMap, width: int, height: int) -> list[Line]:
        palette, number = self.palette, self._num_notes(height)
        first = self._inspected(cells) if self.has_focus else self._legend(cells)
        notes = [self.line(width).add(shorten(first, width), palette.muted)]
        broken = any(pin.error for pin in self._pins)
        style = palette.warn if broken else palette.muted
        notes.append(self.line(width).add(shorten_parts(self._said(), width), style))
        return notes[:number]

    def _legend(self, cells: BlockMap) -> str:
        """The signs of the states that occur now, or nearly always."""
        glyphs = self.glyphs
        signs = (
            ("1-9a-z owner", 1),
            (f"{glyphs.reserved} reserved", cells.reserved),
            (f"{glyphs.shared} shared", 1),
            (f"{glyphs.cached} cached", 1),
            (f"{glyphs.pinned} pinned", cells.pinned),
            (f"{glyphs.free} free", 1),
        )
        return "  ".join(text for text, number in signs if number)

    def _inspected(self, cells: BlockMap) -> str:
        """What the cell under the cursor is, and who holds it."""
        first = self.cursor * cells.blocks_per_cell
        last = min(first + cells.blocks_per_cell, cells.num_blocks) - 1
        where = f"blocks {first}..{last}" if last > first else f"block {first}"
        state = BlockState(cells.states[self.cursor])
        owner = cells.owners[self.cursor]
        if state is BlockState.SHARED:
            groups = [group for group in self._sharing if owner in group.ordinals]
            if len(groups) == 1:
                return f"{where} · shared by {self._holders(groups[0], 'sessions ')}"
        number = self._numbers.get(owner)
        if number is None:
            return f"{where} · {_WORDS[state]}"
        held = ", first held" if state is BlockState.SHARED else ""
        return f"{where} · {_WORDS[state]}{held} by session {number} ({number.letter})"

    def _said(self) -> str:
        """What there is to say of pinned prefixes, broken ones first, and of sharing."""
        pins = sorted(self._pins, key=lambda pin: not pin.error)
        parts = [f"pin {pin.name} {_pin_state(pin)}" for pin in pins]
        parts += [f"{group.blocks} blk shared by {self._holders(group)}" for group in self._sharing]
        return " · ".join(parts)

    def _holders(self, group: Sharing, what: str = "") -> str:
        """The sessions of a group, after `what` they are called, and how many of its requests
        belong to none that is shown."""
        known = {self._numbers[o] for o in group.ordinals if o in self._numbers}
        names = ", ".join(map(str, sorted(known)))
        others = sum(ordinal not in self._numbers for ordinal in group.ordinals)
        if not others:
            return what + names
        word = "1 other" if others == 1 else f"{count(others)} others"
        return f"{what}{names} and {word}" if names else word


def _pin_state(pin: PinView) -> str:
    return f"failed: {pin.error}" if pin.error else f"{pin.computed}/{pin.blocks} blk in the pool"


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
