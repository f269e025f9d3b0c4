"""BlockMap: the KV pool as it is drawn: stretches of blocks, sharing and pins."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class BlockState(StrEnum):
    """State of a block. The busiest comes first.

    A reserved block is set aside for tokens of a request that are still to come. A pinned block has
    no holder, and is never evicted.
    """

    SHARED = "s"
    USED = "u"
    RESERVED = "r"
    PINNED = "p"
    CACHED = "c"
    FREE = "f"


class Stretch(NamedTuple):
    """Neighbouring blocks. They are a run of one state and the same holders, unless there are more
    runs than a map may have stretches; then it has several states.

    Attributes:
        first: its first block.
        blocks: how many there are.
        state: the busiest state in it.
        holders: the ordinals of the requests that hold any of its blocks.
        counts: how many blocks are of each state, in the order of `BlockState`; empty for a run.
    """

    first: int
    blocks: int
    state: BlockState
    holders: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()

    def count(self, state: BlockState) -> int:
        """How many blocks are of this state."""
        if self.counts:
            return self.counts[_PLACES[state]]
        return self.blocks if state is self.state else 0


_PLACES = {state: place for place, state in enumerate(BlockState)}


@dataclass(frozen=True, slots=True)
class BlockMap:
    """The pool.

    Attributes:
        stretches: all blocks, from the first to the last.
        free, cached, used: their sum is `num_blocks`.
        shared, reserved: how many of the used blocks are.
        pinned: how many of the cached blocks are.
        host_blocks, host_used: blocks in host memory for sequences that are swapped out, and how
            many of them are used.
        snapshots, snapshots_kept: states of prefixes that there is room for, and how many are
            there; 0 and 0 where the model keeps no states.
    """

    num_blocks: int
    stretches: tuple[Stretch, ...]
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
    """One block in full.

    Attributes:
        age: seconds since it was given, or let go by its last holder; None if it never was used.
        holders: the ordinals of the requests that hold it.
        position: the place of its first token in its sequence; None if it holds nothing.
        token_ids: those that it holds, or is given for, as far as they are known.
        text: of these tokens.
        hash: the start of what its content is found by, as hexadecimal digits; empty if it cannot
            be found.
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
        ordinals: those of the requests that hold the blocks, in order of arrival.
    """

    ordinals: tuple[int, ...]
    blocks: int


@dataclass(frozen=True, slots=True)
class PinView:
    """A prefix that is never evicted.

    Attributes:
        tokens: how many the prefix has, its last partial block included.
        blocks: how many full blocks it has.
        computed: how many of those are in the pool.
        error: why it is not kept; empty if it is.
    """

    name: str
    tokens: int
    blocks: int
    computed: int
    error: str = ""
