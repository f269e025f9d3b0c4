"""KVCache: allocates blocks to sequences, shares equal prefixes and frees blocks."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, NamedTuple

from engine.api.block_map import BlockView
from engine.api.config import EngineConfig
from engine.batch.plan import Request
from engine.cache.host import HostPool
from engine.cache.pool import BlockPool
from engine.cache.snapshots import SnapshotPool

HASH_DIGITS = 12


def root_hash(key: str, salt: str = "") -> bytes:
    """The hash at which every chain of this salt starts. `key` identifies everything but the tokens
    that the content depends on: model and dtype. It has no line break, so that a salt cannot turn
    it into another key.
    """
    text = f"{key}\n{salt}" if salt else key
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()


def block_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Hash of a full block: of its tokens and, through its parent's hash, of all tokens before it.

    It is the SHA-256 of the ids as 32-bit integers. Equal hashes mean equal prefixes, so tokens
    need not be compared, and nobody can craft a collision that reads another user's cache.
    """
    return hashlib.sha256(parent + array("I", token_ids).tobytes()).digest()


class Content(NamedTuple):
    """A full block's content: its hash, the position of its first token, and its token ids."""

    hash: bytes
    position: int
    token_ids: array[int]


class PrefixIndex:
    """Maps prefixes to blocks. A block has one hash; of equal blocks the first is kept.

    Args:
        num_blocks: size of the pool.
    """

    def __init__(self, num_blocks: int) -> None:
        self._blocks: dict[bytes, int] = _of_final_size(num_blocks)
        self._contents: list[Content | None] = [None] * num_blocks

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, hash: bytes) -> int | None:
        """The block that ends this prefix; None if there is none."""
        return self._blocks.get(hash)

    def content(self, block: int) -> Content | None:
        """Content of a block; None if it is not published."""
        return self._contents[block]

    def add(self, block: int, content: Content) -> bool:
        """Publish a block; False if another block with the same content is already published."""
        if content.hash in self._blocks:
            return False
        self._blocks[content.hash] = block
        self._contents[block] = content
        return True

    def remove(self, block: int) -> None:
        """Unpublish an evicted block."""
        content, self._contents[block] = self._contents[block], None
        assert content is not None
        del self._blocks[content.hash]


def _of_final_size(count: int) -> dict[bytes, int]:
    """Return an empty dictionary preallocated for `count` keys, if keys are removed as others are
    added: otherwise Python rebuilds it at twice the size when it first fills up. For 65,600 blocks
    that was 5 MB, after 20 minutes of 64 chats.
    """
    # Python fills two thirds of its entries, and a rebuilt one has at least three for each key.
    num_places = 1 << (3 * count - 1).bit_length()
    rooms: dict[Any, int] = dict.fromkeys(range(num_places // 3 + 1), 0)
    while rooms:
        rooms.popitem()
    return rooms


class KVCache:
    """The paged KV cache as the scheduler sees it: block tables over one pool and one index.

    Args:
        key: a name for model and dtype, with which the prefix hashes start.
        keeps_states: whether sequences have a state beside their keys and values.

    Attributes:
        pinned: hashes of the blocks that `publish` protects from eviction (`engine.core.pins`).
        snapshots: snapshots of such states; None if the model has none.
    """

    def __init__(self, config: EngineConfig, key: str, *, keeps_states: bool = False) -> None:
        self.block_size = config.block_size
        self.pinned: Set[bytes] = frozenset()
        self.index = PrefixIndex(config.num_blocks)
        self.pool = BlockPool(config.num_blocks, evicted=self.index.remove)
        # States are not swapped.
        self.host = HostPool(0 if keeps_states else config.num_host_blocks)
        self.snapshots = SnapshotPool(config.num_snapshots) if keeps_states else None
        self._key = key

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def match(self, request: Request) -> list[int]:
        """Return the blocks that hold the longest cached prefix of a request's known tokens.

        The prefix never covers all tokens (`Request.num_reusable_tokens`). If the model keeps
        states, it ends at a snapshot.
        """
        self.hash_upto(request, request.num_known_tokens)
        return self.find(request.block_hashes[: request.num_reusable_tokens // self.block_size])

    def find(self, hashes: Sequence[bytes]) -> list[int]:
        """The blocks of the longest prefix that a request could reuse."""
        blocks = []
        for hash in hashes:
            block = self.index.find(hash)
            if block is None:
                break
            blocks.append(block)
        if self.snapshots is not None:
            while blocks and not self.snapshots.has(hashes[len(blocks) - 1]):
                blocks.pop()
        return blocks

    def num_obtainable(self, hit: list[int]) -> int:
        """Blocks that can still be allocated once those of `hit` are held."""
        return self.pool.num_available - sum(map(self.pool.is_available, hit))

    def adopt(self, request: Request, hit: list[int]) -> None:
        """Start a request's table with the blocks of its cached prefix.

        The request holds them before any block is allocated, because allocation may evict a block
        without holder.
        """
        for block in hit:
            self.pool.share(block, request.ordinal)
        request.block_table = list(hit)
        request.num_published = len(hit)
        request.num_computed_tokens = request.num_committed_tokens = len(hit) * self.block_size

    def missing(self, request: Request, num_tokens: int) -> int:
        """Blocks that a request still needs for `num_tokens` tokens, beyond its reserved ones."""
        held = len(request.block_table) + len(request.reserved_blocks)
        return max(0, -(-num_tokens // self.block_size) - held)

    def reserve(self, request: Request, num_tokens: int) -> None:
        """Reserve the blocks missing for `num_tokens`; the caller has checked the pool for them."""
        blocks = self.pool.allocate(
            self.missing(request, num_tokens), request.ordinal, reserve=True
        )
        request.reserved_blocks = blocks[::-1]

    def extend(self, request: Request, num_tokens: int) -> tuple[int, ...]:
        """Append the blocks that the table needs for `num_tokens`, reserved ones first.

        The caller has checked that the pool has them.
        """
        count = -(-num_tokens // self.block_size) - len(request.block_table)
        if count <= 0:
            return ()
        blocks: list[int] = []
        while request.reserved_blocks and len(blocks) < count:
            blocks.append(request.reserved_blocks.pop())
            self.pool.fill(blocks[-1])
        blocks += self.pool.allocate(count - len(blocks), request.ordinal)
        request.block_table += blocks
        return tuple(blocks)

    def publish(self, request: Request, num_tokens: int) -> None:
        """Publish the full blocks among the first `num_tokens` tokens in the prefix index.

        Call this after the forward pass that filled them, because the index may only have filled
        blocks.
        """
        full = num_tokens // self.block_size
        if full <= request.num_published:
            return
        self.hash_upto(request, num_tokens)
        for i in range(request.num_published, full):
            block = request.block_table[i]
            start = i * self.block_size
            token_ids = array("I", request.token_ids(start, start + self.block_size))
            if self.index.add(block, Content(request.block_hashes[i], start, token_ids)):
                self.pool.retain(block)
                if request.block_hashes[i] in self.pinned:
                    self.pool.pin(block)
        request.num_published = full

    def view(self, block: int, holders: Mapping[int, Request]) -> BlockView:
        """Details of a block.

        Args:
            holders: the requests that hold blocks, by their ordinals.
        """
        view = self.pool.view(block)
        if content := self.index.content(block):
            hash = content.hash.hex()[:HASH_DIGITS]
            ids = tuple(content.token_ids)
            return replace(view, position=content.position, token_ids=ids, hash=hash)
        request = next((holders[who] for who in view.holders if who in holders), None)
        if request is None or block not in request.block_table:
            return view
        start = request.block_table.index(block) * self.block_size
        end = min(start + self.block_size, request.num_known_tokens)
        return replace(view, position=start, token_ids=tuple(request.token_ids(start, end)))

    def detach(self, request: Request) -> list[int]:
        """Empty a request's table; returns its blocks in reverse, for the tail to go first."""
        blocks = request.reserved_blocks + request.block_table[::-1]
        request.block_table, request.reserved_blocks = [], []
        request.num_published = request.num_committed_tokens = 0
        return blocks

    def hash_upto(self, request: Request, num_tokens: int) -> None:
        """Extend `Request.block_hashes` to the full blocks of the first `num_tokens` tokens."""
        hashes = request.block_hashes
        if len(hashes) < num_tokens // self.block_size:
            token_ids = request.token_ids(len(hashes) * self.block_size, num_tokens)
            self.chain(hashes, token_ids, request.cache_salt)

    def chain(self, hashes: list[bytes], token_ids: Sequence[int], salt: str = "") -> None:
        """Append the hashes of the full blocks of `token_ids`, which follow the hashed tokens."""
        for start in range(0, len(token_ids) - self.block_size + 1, self.block_size):
            parent = hashes[-1] if hashes else root_hash(self._key, salt)
            hashes.append(block_hash(parent, token_ids[start : start + self.block_size]))


class Reclaim:
    """Frees the blocks of sequences that ended or were preempted.

    A plan in flight may still write to its blocks, so those are freed when its step has ended.
    """

    def __init__(self, cache: KVCache) -> None:
        self._pool = cache.pool
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
            self._pool.free(blocks, seq)

    def free(self, seq: int, blocks: list[int]) -> None:
        """Free a sequence's blocks: now, or after the last plan in flight that has it."""
        last = max((s for s, seqs in self._in_flight.items() if seq in seqs), default=0)
        if last:
            self._pending.append((last, seq, blocks))
        else:
            self._pool.free(blocks, seq)
