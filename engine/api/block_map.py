"""BlockMap: the KV pool as segments of blocks to draw, with sharing and pins."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class BlockState(StrEnum):
    """State of a block, the busiest first.

    A reserved block is allocated for later tokens of a request. A pinned block has no holder, and
    is never evicted.
    """

    SHARED = "s"
    USED = "u"
    RESERVED = "r"
    PINNED = "p"
    CACHED = "c"
    FREE = "f"


class BlockSegment(NamedTuple):
    """Neighbouring blocks, all of one state and with the same holders. If the pool has more such
    runs than a map may have segments, a segment joins several of them.

    Attributes:
        first: its first block.
        blocks: the number of blocks.
        state: its busiest state.
        holders: ordinals of the requests that hold any of its blocks.
        counts: number of blocks in each state, in the order of `BlockState`; empty for a run.
    """

    first: int
    blocks: int
    state: BlockState
    holders: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()

    def count(self, state: BlockState) -> int:
        """Number of blocks in this state."""
        if self.counts:
            return self.counts[_PLACES[state]]
        return self.blocks if state is self.state else 0


_PLACES = {state: place for place, state in enumerate(BlockState)}


@dataclass(frozen=True, slots=True)
class BlockMap:
    """The whole pool.

    Attributes:
        segments: all blocks, from the first to the last.
        free, cached, used: their sum is `num_blocks`.
        shared, reserved: how many of the used blocks are shared, and reserved.
        pinned: how many of the cached blocks are pinned.
        host_blocks, host_used: blocks in host memory for swapped-out sequences, and how many are
            used.
        snapshots, snapshots_kept: capacity for states of prefixes, and how many are kept; 0 and 0
            if the model keeps no states.
    """

    num_blocks: int
    segments: tuple[BlockSegment, ...]
    free: int
    cached: int
    used: int
    shared: int
    reserved: int = 0
    pinned: int = 0
    host_blocks: int = 0
    host_used: int = 0
    snapshots: int = 0
    snapshots_kept: int = 0


@dataclass(frozen=True, slots=True)
class BlockView:
    """Details of one block.

    Attributes:
        age: seconds since it was allocated, or released by its last holder; None if it was never
            used.
        holders: ordinals of the requests that hold it.
        position: position of its first token in its sequence; None if it is empty.
        token_ids: its tokens, or those that it is allocated for, as far as they are known.
        text: text of these tokens.
        hash: first hexadecimal digits of its content's hash; empty if it is not published.
    """

    number: int
    state: BlockState
    age: float | None
    holders: tuple[int, ...]
    position: int | None = None
    token_ids: tuple[int, ...] = ()
    text: str = ""
    hash: str = ""


@dataclass(frozen=True, slots=True)
class Sharing:
    """Blocks that the same requests share.

    Attributes:
        ordinals: ordinals of the requests that hold the blocks, in order of arrival.
    """

    ordinals: tuple[int, ...]
    blocks: int


@dataclass(frozen=True, slots=True)
class PinView:
    """A prefix that is never evicted.

    Attributes:
        tokens: tokens of the prefix, including its last partial block.
        blocks: number of full blocks.
        computed: how many of those are in the pool.
        error: why it is not pinned; empty if it is.
    """

    name: str
    tokens: int
    blocks: int
    computed: int
    error: str = ""
