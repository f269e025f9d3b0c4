"""The books of snapshots: who is kept, who is given up, and who is not."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.cache.snapshots import SnapshotPool


def test_the_one_that_was_used_longest_ago_is_given_up() -> None:
    pool = SnapshotPool(2)
    for name in (b"a", b"b"):
        pool.retain(taken(pool), name)
    first = pool.hold(b"a")
    pool.release(b"a")
    assert pool.allocate() is not None
    assert pool.has(b"a")
    assert not pool.has(b"b")
    assert pool.hold(b"a") == first


def taken(pool: SnapshotPool) -> int:
    snapshot = pool.allocate()
    assert snapshot is not None
    return snapshot


class SnapshotMachine(RuleBasedStateMachine):
    """A pool against a plain record of what each snapshot holds."""

    @initialize(size=st.integers(0, 5))
    def start(self, size: int) -> None:
        self.pool = SnapshotPool(size)
        self.pending: list[int] = []
        self.contents: dict[int, bytes] = {}
        self.held: list[bytes] = []
        self.pinned: set[bytes] = set()

    @rule()
    def take(self) -> None:
        snapshot = self.pool.allocate()
        if snapshot is None:
            stays = self.pinned.union(self.held)
            assert all(name in stays for name in self.contents.values())
            assert len(self.contents) + len(self.pending) == self.pool.num_snapshots
            return
        assert snapshot not in self.pending
        gone = self.contents.pop(snapshot, None)
        assert gone not in self.held
        assert gone not in self.pinned
        self.pending.append(snapshot)

    @precondition(lambda self: self.pending)
    @rule(name=st.sampled_from((b"a", b"b", b"c")), keeps=st.booleans())
    def settle(self, name: bytes, keeps: bool) -> None:
        snapshot = self.pending.pop(0)
        if not keeps:
            self.pool.free(snapshot)
        else:
            self.pool.retain(snapshot, name)
            if name not in self.contents.values():
                self.contents[snapshot] = name

    @rule(name=st.sampled_from((b"a", b"b", b"c")))
    def hold(self, name: bytes) -> None:
        assert self.pool.has(name) == (name in self.contents.values())
        if self.pool.has(name):
            assert self.contents[self.pool.hold(name)] == name
            self.held.append(name)

    @precondition(lambda self: self.held)
    @rule()
    def release(self) -> None:
        self.pool.release(self.held.pop())

    @rule(name=st.sampled_from((b"a", b"b", b"c")))
    def forget(self, name: bytes) -> None:
        self.pool.forget(name)
        if name not in self.held and name not in self.pinned:
            self.contents = {k: v for k, v in self.contents.items() if v != name}

    @rule(name=st.sampled_from((b"a", b"b", b"c")), pins=st.booleans())
    def pin(self, name: bytes, pins: bool) -> None:
        if pins:
            self.pool.pin(name)
            self.pinned.add(name)
        else:
            self.pool.unpin(name)
            self.pinned.discard(name)

    @invariant()
    def balances(self) -> None:
        if hasattr(self, "pool"):
            self.pool.check()
            assert self.pool.num_kept == len(self.contents)


TestSnapshots = SnapshotMachine.TestCase
TestSnapshots.settings = settings(max_examples=60, stateful_step_count=30)


@pytest.mark.parametrize("lose", ["_free", "_pending"])
def test_a_lost_snapshot_is_found_out(lose: str) -> None:
    pool = SnapshotPool(2)
    pool.allocate()
    getattr(pool, lose).pop()
    with pytest.raises(AssertionError, match="lost or counted twice"):
        pool.check()
