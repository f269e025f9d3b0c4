"""HostPool: allocates host memory blocks to sequences. It does the accounting, without tensors."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

# Bytes that pass through device memory at once on their way to host memory or back. Sequences of
# any length are swapped in pieces of this size.
PIECE_BYTES = 32 << 20
# Device memory that a swap takes: the piece, and the buffer gathered for it.
SWAP_BYTES = 2 * PIECE_BYTES


class HostPool:
    """Blocks in host memory for sequences that are swapped out (PagedAttention, SOSP'23, section
    4.5).

    A block is free or owned by one sequence. Nothing is shared here, because a swapped-out sequence
    copies what it shared. `free + used == num_blocks` always.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        # A heap: the lowest numbers are allocated first, so that the blocks of a sequence are
        # adjacent where possible and are copied as one run.
        self._free = list(range(num_blocks))
        self._owners: dict[int, int] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return len(self._owners)

    def allocate(self, count: int, seq: int) -> list[int]:
        """Allocate `count` blocks to sequence `seq`. The caller has checked `num_free`."""
        blocks = [heapq.heappop(self._free) for _ in range(count)]
        self._owners.update(dict.fromkeys(blocks, seq))
        return blocks

    def free(self, blocks: Iterable[int]) -> None:
        """Free blocks."""
        for block in blocks:
            del self._owners[block]
            heapq.heappush(self._free, block)

    def check(self, tables: Iterable[tuple[int, Iterable[int]]]) -> None:
        """Compare the accounting with the host blocks that requests hold: (sequence, its blocks).

        Raises:
            AssertionError: a block is lost, held twice, or counted wrongly.
        """
        held = [(block, seq) for seq, blocks in tables for block in blocks]
        assert len(dict(held)) == len(held), "a host block is held twice"
        assert dict(held) == self._owners, f"{self._owners} on the books, not {dict(held)}"
        assert self._owners.keys().isdisjoint(self._free), "a free host block is held"
        assert len(set(self._free)) == self.num_free, "a host block is free twice"
        assert self.num_free + self.num_used == self.num_blocks, "a host block is lost"
