"""States: snapshots of sequences' states, which steps save and prefix hits continue from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from engine.api.lifecycle import RequestState
from engine.batch.plan import Request
from engine.cache.manager import KVCache


class Save(NamedTuple):
    """A snapshot that a step writes.

    Attributes:
        epoch: the request's `num_preemptions` at planning.
        num_tokens: tokens in the state, which end a block.
    """

    request: Request
    epoch: int
    num_tokens: int
    snapshot: int


Restores = tuple[tuple[int, int], ...]


class States:
    """Snapshots for a model that keeps states beside its keys and values (`SnapshotPool`).

    A row that ends a block saves the state there, and a request that is admitted with a cached
    prefix continues from the snapshot at its end. Only the last snapshot of those taken while a
    request decodes is kept.
    """

    def __init__(self, cache: KVCache) -> None:
        assert cache.snapshots is not None
        self._cache = cache
        self._pool = cache.snapshots
        self._saves: dict[Request, Save] = {}
        # By request: the hash of its prefix, and the snapshot.
        self._restores: dict[Request, tuple[bytes, int]] = {}

    def row_end(self, request: Request, start: int, end: int) -> int:
        """Where a row that could compute tokens [start, end) ends.

        A prompt is cut at its last full block and at the ends of pinned prefixes, and a chunk at
        the end of a block, because snapshots are of full blocks.
        """
        if not request.is_prefill or not self._pool.num_snapshots:
            return end
        size = self._cache.block_size
        cuts = [(request.num_tokens - 1) // size * size]
        if self._pool.num_pinned:
            self._cache.hash_upto(request, end)
            hashes = request.block_hashes
            # Only this row's blocks: a long prompt has thousands before it.
            blocks = range(start // size, end // size)
            cuts += [(i + 1) * size for i in blocks if self._pool.wants(hashes[i])]
        inside = [cut for cut in cuts if start < cut < end]
        if inside:
            return min(inside)
        aligned = end // size * size
        return aligned if start < aligned and end < request.num_tokens else end

    def save(self, request: Request, num_tokens: int) -> None:
        """Save the state after a planned row, if the row ends a block and a snapshot is free."""
        if num_tokens % self._cache.block_size == 0:
            snapshot = self._pool.allocate()
            if snapshot is not None:
                epoch = request.num_preemptions
                self._saves[request] = Save(request, epoch, num_tokens, snapshot)

    def restore(self, request: Request, num_blocks: int) -> None:
        """Let a request continue from the snapshot after its first blocks with its first row."""
        hash = request.block_hashes[num_blocks - 1]
        self._restores[request] = hash, self._pool.hold(hash)

    def drop(self, request: Request) -> None:
        """Free the snapshots that no plan has yet: the request was preempted or has ended."""
        if request in self._saves:
            self._pool.free(self._saves.pop(request).snapshot)
        if request in self._restores:
            self._pool.release(self._restores.pop(request)[0])

    def drain(self, requests: Iterable[Request]) -> tuple[Restores, tuple[Save, ...]]:
        """Remove and return what the next plan, which has rows of these requests, restores and
        saves: (snapshot, sequence) and saves.
        """
        restores = []
        for request in requests:
            if request in self._restores:
                hash, snapshot = self._restores.pop(request)
                self._pool.release(hash)
                restores.append((snapshot, request.ordinal))
        saves, self._saves = tuple(self._saves.values()), {}
        return tuple(restores), saves

    def step_ended(self, saves: Sequence[Save], *, publish: bool) -> None:
        """Publish the snapshots of a step that ended."""
        for save in saves:
            request = save.request
            is_same = request.num_preemptions == save.epoch
            if publish and is_same and request.state is RequestState.RUNNING:
                self._publish(save)
            else:
                self._pool.free(save.snapshot)

    def step_failed(self, saves: Sequence[Save]) -> None:
        """Free the snapshots of a step that failed."""
        for save in saves:
            self._pool.free(save.snapshot)

    def _publish(self, save: Save) -> None:
        request, num_tokens = save.request, save.num_tokens
        self._cache.hash_upto(request, num_tokens)
        hash = request.block_hashes[num_tokens // self._cache.block_size - 1]
        self._pool.retain(save.snapshot, hash)
        # Recomputation after a preemption may end where the last snapshot was taken.
        if num_tokens > request.num_prompt_tokens and request.last_state != hash:
            if request.last_state is not None:
                self._pool.forget(request.last_state)
            request.last_state = hash
