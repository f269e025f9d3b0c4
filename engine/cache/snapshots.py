"""SnapshotPool: maps prefixes to state snapshots. It does the accounting, without tensors."""

from __future__ import annotations

from collections import Counter, OrderedDict


class SnapshotPool:
    """Snapshots of states that sequences had at the end of a full block, for prefix hits.

    A model with states beside its keys and values can continue from a prefix only where a snapshot
    was taken. A snapshot is free, pending (the step that takes it has not ended) or kept by the
    hash of its prefix (`engine.cache.manager`); `free + pending + kept == num_snapshots` always.
    When none is free, the least recently used kept one is evicted, unless a request is about to
    continue from it or its prefix is pinned.
    """

    def __init__(self, num_snapshots: int) -> None:
        self.num_snapshots = num_snapshots
        self._free = list(range(num_snapshots - 1, -1, -1))
        self._pending: set[int] = set()
        self._kept: OrderedDict[bytes, int] = OrderedDict()
        self._held: Counter[bytes] = Counter()
        self._pinned: set[bytes] = set()

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    @property
    def num_pinned(self) -> int:
        """Pinned prefixes, with or without a snapshot."""
        return len(self._pinned)

    def has(self, hash: bytes) -> bool:
        """Whether this prefix has a snapshot."""
        return hash in self._kept

    def wants(self, hash: bytes) -> bool:
        """Whether this prefix is pinned and has no snapshot yet."""
        return hash in self._pinned and hash not in self._kept

    def hold(self, hash: bytes) -> int:
        """Protect the snapshot of a prefix from eviction until `release`; returns it."""
        self._held[hash] += 1
        self._kept.move_to_end(hash)
        return self._kept[hash]

    def release(self, hash: bytes) -> None:
        """Make a held snapshot evictable again."""
        self._held[hash] -= 1
        if not self._held[hash]:
            del self._held[hash]

    def allocate(self) -> int | None:
        """Allocate a snapshot for a step to write; None if all are pending, held or pinned."""
        if self._free:
            snapshot = self._free.pop()
        else:
            oldest = next((hash for hash in self._kept if self._may_go(hash)), None)
            if oldest is None:
                return None
            snapshot = self._kept.pop(oldest)
        self._pending.add(snapshot)
        return snapshot

    def retain(self, snapshot: int, hash: bytes) -> None:
        """Publish a pending snapshot. Of two of one prefix, the first is kept."""
        if hash in self._kept:
            self._kept.move_to_end(hash)
            self.free(snapshot)
        else:
            self._pending.remove(snapshot)
            self._kept[hash] = snapshot

    def free(self, snapshot: int) -> None:
        """Free a pending snapshot."""
        self._pending.remove(snapshot)
        self._free.append(snapshot)

    def forget(self, hash: bytes) -> None:
        """Free the snapshot of a prefix, if there is one that is neither held nor pinned."""
        if hash in self._kept and self._may_go(hash):
            self._free.append(self._kept.pop(hash))

    def pin(self, hash: bytes) -> None:
        """Protect the snapshot of a prefix, present or future, from eviction until `unpin`."""
        self._pinned.add(hash)

    def unpin(self, hash: bytes) -> None:
        """Make the snapshot of a prefix evictable again; ignores an unknown prefix."""
        self._pinned.discard(hash)

    def _may_go(self, hash: bytes) -> bool:
        return hash not in self._held and hash not in self._pinned

    def check(self) -> None:
        """Verify the accounting.

        Raises:
            AssertionError: a snapshot is lost or duplicated, or held but not kept.
        """
        everywhere = [*self._free, *self._pending, *self._kept.values()]
        assert sorted(everywhere) == list(range(self.num_snapshots)), (
            "a snapshot is lost or counted twice"
        )
        assert self._held.keys() <= self._kept.keys(), "a snapshot is held but not kept"
