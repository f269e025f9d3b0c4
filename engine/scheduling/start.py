"""Start: where a waiting request would continue if it were admitted now."""

from __future__ import annotations

from dataclasses import dataclass

from engine.batch.request import Request
from engine.cache.manager import KVCache


@dataclass(frozen=True, slots=True)
class Start:
    """Tokens that a request need not compute: a cached prefix, a fork's tokens, or swapped-out
    ones.

    Attributes:
        tokens: how many need not be computed.
        hit: the blocks of its cached prefix; empty if it forks.
        shared: how many blocks of its table are, or were, held by others.
        forks: whether the tokens come from the request that it forks.
        restored: whether those beyond the hit come from host memory.
    """

    tokens: int
    hit: list[int]
    shared: int
    forks: bool = False
    restored: bool = False

    @staticmethod
    def of(request: Request, cache: KVCache, *, prefix_caching: bool, may_fork: bool) -> Start:
        """Choose the start that leaves the fewest tokens to compute.

        Args:
            may_fork: whether blocks may be copied for it.
        """
        hit = cache.match(request) if prefix_caching else []
        found = len(hit) * cache.block_size
        if request.host_blocks and request.num_computed_tokens > found:
            return Start(request.num_computed_tokens, hit, len(hit), restored=True)
        common = cache.common(request) if may_fork and request.fork_of is not None else 0
        if common > found:
            return Start(common, [], common // cache.block_size, forks=True)
        return Start(found, hit, len(hit))
