"""Pins: named prefixes that are never evicted, and whether each fits."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from engine.api.block_map import PinView
from engine.api.errors import InvalidRequestError
from engine.cache.manager import KVCache

log = logging.getLogger(__name__)


class Pins:
    """The pins requested for one cache. Refused ones stay, so that snapshots show them."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._asked: dict[str, tuple[int, str]] = {}  # By name: tokens, and why not pinned or "".

    def pin(self, name: str, token_ids: Sequence[int]) -> None:
        """Protect a prefix from eviction from when it is computed until `unpin`. If it does not
        fit, the prefix pinned under this name before stays.
        """
        tokens, error, size = len(token_ids), "", self._cache.block_size
        try:
            if tokens < size:
                raise InvalidRequestError(f"it is shorter than one block, {size} tokens", "pin")
            self._cache.pin(name, token_ids)
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
        self._cache.unpin(name)
        self._asked.pop(name, None)

    def views(self, *, prefix_caching: bool) -> tuple[PinView, ...]:
        """All requested pins, in the order of their requests.

        Args:
            prefix_caching: the knob; while it is off, pins have no effect, and each view says so.
        """
        held = {name: (blocks, computed) for name, blocks, computed in self._cache.pins()}
        idle = "" if prefix_caching else "prefix_caching is off"
        return tuple(
            PinView(name, tokens, *held.get(name, (0, 0)), error or idle)
            for name, (tokens, error) in self._asked.items()
        )
