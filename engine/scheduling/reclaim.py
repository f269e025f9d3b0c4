"""Reclaim: frees blocks. Those that a step in flight uses are freed when it has ended."""

from __future__ import annotations

from collections.abc import Collection

from engine.cache.manager import KVCache


class Reclaim:
    """Frees the blocks of sequences that ended or were preempted.

    A plan in flight may still write to its blocks, so they are freed after it.
    """

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._in_flight: dict[int, Collection[int]] = {}
        self._pending: list[tuple[int, int, list[int]]] = []

    @property
    def num_pending(self) -> int:
        """Blocks to free after a step."""
        return sum(len(blocks) for _step, _seq, blocks in self._pending)

    def pending_tables(self) -> list[tuple[int, list[int]]]:
        """(sequence, blocks) to free after a step; for checking the accounting."""
        return [(seq, blocks) for _step, seq, blocks in self._pending]

    def step_begins(self, step: int, seqs: Collection[int]) -> None:
        self._in_flight[step] = seqs

    def step_ended(self, step: int) -> None:
        """Free the blocks that waited for this step. Steps end in the order in which they began."""
        del self._in_flight[step]
        ripe = [entry for entry in self._pending if entry[0] <= step]
        self._pending = [entry for entry in self._pending if entry[0] > step]
        for _step, seq, blocks in ripe:
            self._cache.pool.release(blocks, seq)

    def free(self, seq: int, blocks: list[int]) -> None:
        """Free a sequence's blocks: now, or after the last plan in flight that has it."""
        last = max((s for s, seqs in self._in_flight.items() if seq in seqs), default=0)
        if last:
            self._pending.append((last, seq, blocks))
        else:
            self._cache.pool.release(blocks, seq)
