"""KvNotes: the lines below the KV map about the pool, a cell and a block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.api.block_map import BlockMap, BlockSegment, BlockState, BlockView, PinView, Sharing
from widgets.chat_number import ChatName
from widgets.figures import count, lasting, percent
from widgets.glyphs import Glyphs

_WORDS = {
    BlockState.SHARED: "shared",
    BlockState.USED: "used",
    BlockState.RESERVED: "reserved and not yet used",
    BlockState.PINNED: "pinned: held by nobody, never evicted",
    BlockState.CACHED: "cached, evictable",
    BlockState.FREE: "free",
}
_SHORT = {state: text.partition(":")[0].partition(",")[0] for state, text in _WORDS.items()}
_SHORT[BlockState.RESERVED] = "reserved"


@dataclass(frozen=True, slots=True)
class KvNotes:
    """Data about the pool besides the states of its blocks; see `KvMap.show`."""

    names: Mapping[int, ChatName] = field(default_factory=dict)
    sharing: Sequence[Sharing] = ()
    pins: Sequence[PinView] = ()
    detail: BlockView | None = None

    @property
    def has_broken_pin(self) -> bool:
        return any(pin.error for pin in self.pins)

    def legend(self, blocks: BlockMap, cells: Sequence[BlockSegment], glyphs: Glyphs) -> str:
        """The signs of the states that occur now, or nearly always."""
        signs = (
            ("1-9a-z chat", True),
            ("A-Z chat held elsewhere", any(n.number.theirs for n in self.names.values())),
            (f"{glyphs.reserved} reserved", blocks.reserved),
            (f"{glyphs.shared} shared", True),
            (f"{glyphs.cached} cached", True),
            (f"{glyphs.pinned} pinned", blocks.pinned),
            (f"{glyphs.free} free", True),
            (f"{glyphs.part} share of a cell", any(cell.counts for cell in cells)),
        )
        return "  ".join(text for text, is_there in signs if is_there)

    def of_cell(self, cell: BlockSegment) -> list[str]:
        """A cell's state and its holders, in parts."""
        last = cell.first + cell.blocks - 1
        where = f"blocks {cell.first}..{last}" if cell.blocks > 1 else f"block {cell.first}"
        if cell.counts:
            states = [(state, cell.count(state)) for state in BlockState]
            parts = [f"{percent(n / cell.blocks)} {_SHORT[state]}" for state, n in states if n]
        else:
            parts = [_WORDS[cell.state]]
        if cell.holders:
            by = f"by {self._holders(cell.holders)}"
            parts = [*parts, f"held {by}"] if cell.counts else [f"{parts[0]} {by}"]
        return [where, *parts]

    def of_block(self, cell: BlockSegment) -> list[str]:
        """Details of the first block of a cell: the age of its state, its number of holders, and
        its content, in parts; none if `detail` is of another block or an earlier state."""
        view = self.detail
        if view is None or view.number != cell.first:
            return []
        if not cell.counts and view.state is not cell.state:
            return []
        parts = [f"block {view.number}"] if cell.blocks > 1 else []
        parts += [] if view.age is None else [f"for {lasting(view.age)}"]
        parts += [f"held {len(view.holders)}×"] if view.holders else []
        if view.position is not None and view.token_ids:
            last = view.position + len(view.token_ids) - 1
            parts.append(f"tok {view.position}..{last}")
        parts += [f"hash {view.hash}"] if view.hash else []
        return parts + ([f"“{view.text}”"] if view.text else [])

    def of_pool(self) -> str:
        """A summary of pinned prefixes, broken ones first, and of sharing."""
        pins = sorted(self.pins, key=lambda pin: not pin.error)
        parts = [f"pin {pin.name} {_pin_state(pin)}" for pin in pins]
        parts += [
            f"{group.blocks} blk shared by {self._holders(group.ordinals)}"
            for group in self.sharing
        ]
        return " · ".join(parts)

    def _holders(self, ordinals: Sequence[int]) -> str:
        """The chats of some requests by number and title, and how many of the requests belong to no
        shown chat."""
        known = {self.names[who].number: self.names[who] for who in ordinals if who in self.names}
        names = ", ".join(str(known[number]) for number in sorted(known))
        others = sum(who not in self.names for who in ordinals)
        if not others:
            return names
        word = "1 other" if others == 1 else f"{count(others)} others"
        return f"{names} and {word}" if names else word


def _pin_state(pin: PinView) -> str:
    return f"failed: {pin.error}" if pin.error else f"{pin.computed}/{pin.blocks} blk in the pool"
