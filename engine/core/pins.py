"""Pins: named prefixes that are never evicted, and whether each fits."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from engine.api.block_map import PinView
from engine.api.config import EngineConfig
from engine.api.errors import InvalidRequestError
from engine.cache.manager import KVCache

log = logging.getLogger(__name__)


class Pins:
    """The pins requested for one cache. Refused ones stay, so that snapshots show them.

    A pin protects the full blocks of a prefix from when they are first computed; if the model keeps
    states, also the snapshot at its end.
    """

    def __init__(self, cache: KVCache, config: EngineConfig) -> None:
        self._cache = cache
        self._spare = max(config.num_blocks - config.blocks_for(config.max_model_len), 0)
        self._asked: dict[str, tuple[int, str]] = {}  # By name: tokens, and why not pinned or "".
        self._hashes: dict[str, list[bytes]] = {}  # By name: those of the prefix's full blocks.
        self._pins_of: Counter[bytes] = Counter()
        cache.pinned = self._pins_of.keys()

    def pin(self, name: str, token_ids: Sequence[int]) -> None:
        """Protect a prefix from eviction from when it is computed until `unpin`. If it does not
        fit, the prefix pinned under this name before stays.
        """
        tokens, error, size = len(token_ids), "", self._cache.block_size
        try:
            if tokens < size:
                raise InvalidRequestError(f"it is shorter than one block, {size} tokens", "pin")
            self._protect(name, token_ids)
        except InvalidRequestError as refusal:
            error = refusal.message
            log.warning("the prefix %s is not pinned: %s", name, error)
            tokens, _error = self._asked.get(name, (tokens, ""))
        self._asked[name] = (tokens, error)

    def refuse(self, name: str, reason: str) -> None:
        """Record the refusal of a prefix that has no tokens yet."""
        self._asked[name] = (0, reason)

    def unpin(self, name: str) -> None:
        """Make a pinned prefix evictable again; ignores an unknown name."""
        self._expose(name)
        self._asked.pop(name, None)

    def views(self, *, prefix_caching: bool) -> tuple[PinView, ...]:
        """All requested pins, in the order of their requests.

        Args:
            prefix_caching: the knob; while it is off, pins have no effect, and each view says so.
        """
        idle = "" if prefix_caching else "prefix_caching is off"
        views = []
        for name, (tokens, error) in self._asked.items():
            hashes = self._hashes.get(name, [])
            views.append(PinView(name, tokens, len(hashes), self._computed(hashes), error or idle))
        return tuple(views)

    def _computed(self, hashes: Sequence[bytes]) -> int:
        """How many of these blocks are computed. If the model keeps states, a block counts if a
        snapshot follows it.
        """
        if self._cache.snapshots is not None:
            return len(self._cache.find(hashes))
        return sum(self._cache.index.find(hash) is not None for hash in hashes)

    def _protect(self, name: str, token_ids: Sequence[int]) -> None:
        """Pin the blocks of a prefix in place of those pinned under this name before.

        Raises:
            InvalidRequestError: a request of the model's length would no longer fit beside what is
                pinned, so that the head of the queue could wait for ever; or all snapshots would be
                pinned. Nothing was changed.
        """
        cache, snapshots = self._cache, self._cache.snapshots
        hashes: list[bytes] = []
        cache.chain(hashes, token_ids)
        others = [kept for pin, kept in self._hashes.items() if pin != name]
        wanted = len({hash for kept in (*others, hashes) for hash in kept})
        if wanted > self._spare:
            raise InvalidRequestError(
                f"pinned prefixes would take {wanted} block{'s' * (wanted != 1)}; the pool has "
                f"{self._spare} beyond one sequence of the model's length",
                "pin",
            )
        if snapshots is not None:
            ends = {kept[-1] for kept in (*others, hashes)}
            spare = max(snapshots.num_snapshots - 1, 0)
            if len(ends) > spare:
                raise InvalidRequestError(
                    f"pinned prefixes would take {len(ends)} snapshots of states; snapshot_memory "
                    f"has room for {spare} beyond one",
                    "pin",
                )
        self._expose(name)
        self._hashes[name] = hashes
        self._pins_of.update(hashes)
        if snapshots is not None:
            snapshots.pin(hashes[-1])
        for hash in hashes:
            block = cache.index.find(hash)
            if block is not None:
                cache.pool.pin(block)

    def _expose(self, name: str) -> None:
        """Make the blocks of a pinned prefix evictable again, its tail first."""
        cache, hashes = self._cache, self._hashes.pop(name, [])
        if cache.snapshots is not None and hashes:
            others = {kept[-1] for kept in self._hashes.values()}
            if hashes[-1] not in others:
                cache.snapshots.unpin(hashes[-1])
        for hash in reversed(hashes):
            self._pins_of[hash] -= 1
            if not self._pins_of[hash]:
                del self._pins_of[hash]
                block = cache.index.find(hash)
                if block is not None:
                    cache.pool.unpin(block)
