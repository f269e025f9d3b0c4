"""Pins: prefixes that are kept from eviction, by name, and whether each fits."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from engine.cache.manager import KVCache
from engine.errors import InvalidRequestError
from engine.snapshot import PinView

log = logging.getLogger(__name__)


class Pins:
    """What was asked to be pinned in one cache: a refusal is kept, for snapshots to show."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._asked: dict[str, tuple[int, str]] = {}  # tokens, and why they are not pinned

    def pin(self, name: str, token_ids: Sequence[int]) -> None:
        """Never evict a prefix, once it is computed, until `unpin`; what was pinned under the name
        before stays if this one does not fit.
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
        """Show that a prefix could not even be made tokens."""
        self._asked[name] = (0, reason)

    def unpin(self, name: str) -> None:
        """Let a pinned prefix be evicted again; an unknown name is ignored."""
        self._cache.unpin(name)
        self._asked.pop(name, None)

    def views(self, *, prefix_caching: bool) -> tuple[PinView, ...]:
        """All that were asked for, in that order.

        Args:
            prefix_caching: the knob; without it pins keep nothing, and say so.
        """
        held = {name: (blocks, computed) for name, blocks, computed in self._cache.pins()}
        idle = "" if prefix_caching else "prefix_caching is off"
        return tuple(
            PinView(name, tokens, *held.get(name, (0, 0)), error or idle)
            for name, (tokens, error) in self._asked.items()
        )
