"""KVCache: gives sequences their blocks, shares equal prefixes, takes blocks back."""

from __future__ import annotations

from engine.cache.pool import BlockPool
from engine.cache.prefix import PrefixIndex, block_hash, root_hash
from engine.config import EngineConfig
from engine.request import Request


class KVCache:
    """The paged KV cache as the scheduler sees it: block tables over one pool and one index.

    Args:
        key: names model and dtype; roots the prefix hashes.
    """

    def __init__(self, config: EngineConfig, key: str) -> None:
        self.block_size = config.block_size
        self.index = PrefixIndex()
        self.pool = BlockPool(config.num_blocks, evicted=self.index.drop)
        self._root = root_hash(key)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def match(self, request: Request) -> list[int]:
        """The blocks that hold the longest cached prefix of a request's known tokens.

        Never all of them: one token has to run to give logits, so the hit ends before the last.
        """
        self._hash_upto(request, request.num_known_tokens)
        blocks = []
        for hash in request.block_hashes[: (request.num_known_tokens - 1) // self.block_size]:
            block = self.index.find(hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_obtainable(self, hit: list[int]) -> int:
        """Blocks that could be given once those of `hit` are held."""
        return self.pool.num_available - sum(map(self.pool.is_cached, hit))

    def adopt(self, request: Request, hit: list[int]) -> None:
        """Start a request's table with the blocks of its cached prefix.

        They are held before anything is given, since giving may evict what nobody holds.
        """
        for block in hit:
            self.pool.share(block, request.ordinal)
        request.block_table = list(hit)
        request.num_published = len(hit)
        request.num_computed_tokens = len(hit) * self.block_size

    def missing(self, request: Request, num_tokens: int) -> int:
        """Blocks that the table lacks to hold `num_tokens` tokens."""
        return max(0, self.blocks_for(num_tokens) - len(request.block_table))

    def extend(self, request: Request, num_tokens: int) -> tuple[int, ...]:
        """Give what the table lacks to hold `num_tokens`; the caller checked that it is there."""
        blocks = self.pool.give(self.missing(request, num_tokens), request.ordinal)
        request.block_table += blocks
        return tuple(blocks)

    def publish(self, request: Request, num_tokens: int) -> None:
        """Make the full blocks among the first `num_tokens` tokens findable.

        Called after the forward pass that filled them ran: a block that is found must be filled.
        """
        full = num_tokens // self.block_size
        if full <= request.num_published:
            return
        self._hash_upto(request, num_tokens)
        for i in range(request.num_published, full):
            block = request.block_table[i]
            if self.index.add(request.block_hashes[i], block):
                self.pool.keep(block)
        request.num_published = full

    def detach(self, request: Request) -> list[int]:
        """Take a request's table from it, in reverse, so that its tail is evicted first."""
        blocks = request.block_table[::-1]
        request.block_table = []
        request.num_published = 0
        return blocks

    def _hash_upto(self, request: Request, num_tokens: int) -> None:
        hashes = request.block_hashes
        for i in range(len(hashes), num_tokens // self.block_size):
            start = i * self.block_size
            parent = hashes[-1] if hashes else self._root
            hashes.append(block_hash(parent, request.token_ids(start, start + self.block_size)))
