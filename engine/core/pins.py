"""Pins: prefixes that are kept from eviction, by name, and whether each fits."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from engine.api.block_map import PinView
from engine.api.errors import InvalidRequestError
from engine.cache.manager import KVCache

log = logging.getLogger(__name__)


class Pins:
    """The prefixes that were asked for in one cache. Refused ones stay, for snapshots to show."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._asked: dict[str, tuple[int, str]] = {}  # By name: tokens, and why not pinned or "".

    def pin(self, name: str, token_ids: Sequence[int]) -> None:
        """Keep a prefix from eviction, from when it is computed until `unpin`. If it does not fit,
        the prefix that was pinned under this name before stays.
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
        """Show that a prefix was refused before it had tokens."""
        self._asked[name] = (0, reason)

    def unpin(self, name: str) -> None:
        """Let a pinned prefix be evicted again; an unknown name is ignored."""
        self._cache.unpin(name)
        self._asked.pop(name, None)

    def views(self, *, prefix_caching: bool) -> tuple[PinView, ...]:
        """All pins that were asked for, in the order in which they were.

        Args:
            prefix_caching: the knob; while it is off, pins keep nothing, and each view says so.
        """
        held = {name: (blocks, computed) for name, blocks, computed in self._cache.pins()}
        idle = "" if prefix_caching else "prefix_caching is off"
        return tuple(
            PinView(name, tokens, *held.get(name, (0, 0)), error or idle)
            for name, (tokens, error) in self._asked.items()
        )
