"""PoolParts: the storages of layers with different heads, over one block pool."""

from __future__ import annotations

from collections.abc import Sequence

from engine.cache.storage import KVStorage


class PoolParts:
    """Applies block operations to every part: a block has the same number in all of them.

    Args:
        parts: storages with equal numbers of blocks.
    """

    def __init__(self, parts: Sequence[KVStorage]) -> None:
        self._parts = parts

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """See `KVStorage.copy_blocks`."""
        for part in self._parts:
            part.copy_blocks(pairs)

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        """See `KVStorage.clear_blocks`."""
        for part in self._parts:
            part.clear_blocks(blocks)

    def swap_out(self, pairs: Sequence[tuple[int, int]]) -> None:
        """See `KVStorage.swap_out`."""
        for part in self._parts:
            part.swap_out(pairs)

    def swap_in(self, pairs: Sequence[tuple[int, int]]) -> None:
        """See `KVStorage.swap_in`."""
        for part in self._parts:
            part.swap_in(pairs)

    def swap_rate(self) -> float:
        """See `KVStorage.swap_rate`: the rate of copying all parts one after another."""
        rates = [part.swap_rate() for part in self._parts]
        if not all(rates):
            return 0.0
        sizes = [part.block_bytes for part in self._parts]
        return sum(sizes) / sum(size / rate for size, rate in zip(sizes, rates, strict=True))
