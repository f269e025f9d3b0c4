"""Forks: requests that start from the tokens of a live one, and the copies made for them."""

from __future__ import annotations

from engine.api.lifecycle import RequestState
from engine.batch.plan import Request
from engine.cache.manager import KVCache


class Forks:
    """Several samples of one prompt, which is computed once (PagedAttention, SOSP'23, section 4.4).

    Full blocks of the source are shared. A partly filled last block is copied, because the request
    writes into it at once. This is the paper's copy on write, done at the first write.

    Attributes:
        copies: (source, target) blocks that the next plan copies first, by the target's request.
    """

    def __init__(self, cache: KVCache) -> None:
        self.copies: dict[Request, tuple[int, int]] = {}
        self._cache = cache

    def common(self, request: Request) -> int:
        """How many leading tokens a request can reuse from the live one that it forks.

        It never reuses all of its tokens (`Request.num_reusable_tokens`), and only tokens whose
        step has ended.
        """
        source = request.fork_of
        if source is None or source.state is not RequestState.RUNNING:
            return 0
        if source.cache_salt != request.cache_salt:
            return 0
        if self._cache.snapshots is not None:
            return 0  # The source's state is that after all of its tokens, or a snapshot.
        limit = min(source.num_committed_tokens, request.num_reusable_tokens)
        ours, theirs = request.token_ids(0, limit), source.token_ids(0, limit)
        if ours == theirs:
            return limit
        return next(i for i in range(limit) if ours[i] != theirs[i])

    def awaited(self, request: Request) -> Request | None:
        """The source of a fork that must wait until its source has computed their common prompt."""
        source = request.fork_of
        if source is None or source.state is not RequestState.RUNNING:
            return None
        prompt = min(source.num_prompt_tokens, request.num_reusable_tokens)
        if source.num_committed_tokens >= prompt:
            return None
        return source if source.token_ids(0, prompt) == request.token_ids(0, prompt) else None

    def start(self, request: Request, num_tokens: int) -> None:
        """Start a request's table with the tokens that `common` found. The caller has checked that
        the pool has a block for a copy.
        """
        source, cache = request.fork_of, self._cache
        assert source is not None
        full, rest = divmod(num_tokens, cache.block_size)
        for block in source.block_table[:full]:
            cache.pool.share(block, request.ordinal)
        request.block_table = source.block_table[:full]
        # This request may publish blocks that the source has not published yet.
        request.num_published = min(full, source.num_published)
        request.num_computed_tokens = num_tokens
        # The copied tokens are there only after the step that copies them. A fork of this request
        # has to wait for that.
        request.num_committed_tokens = full * cache.block_size
        if rest:
            copy = cache.pool.allocate(1, request.ordinal)
            request.block_table += copy
            self.copies[request] = source.block_table[full], copy[0]

    def recall(self, victim: Request) -> bool:
        """Cancel the copy for a request that is preempted; False if no copy is due."""
        return self.copies.pop(victim, None) is not None

    def drain(self) -> tuple[tuple[tuple[int, int], ...], list[int]]:
        """Remove and return the next plan's copies, and the sequences that they read."""
        copies, self.copies = self.copies, {}
        sources = [request.fork_of.ordinal for request in copies if request.fork_of is not None]
        return tuple(copies.values()), sources
