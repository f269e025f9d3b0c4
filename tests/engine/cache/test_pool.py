"""The block pool: its books, its order of eviction, its events and its map."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.api.telemetry import BlockChange
from engine.cache.pool import BlockPool
from tests.support.harness import PoolReplay

C = BlockChange


def make_pool(num_blocks: int) -> tuple[BlockPool, list[int]]:
    evicted: list[int] = []
    return BlockPool(num_blocks, evicted.append), evicted


def cache(pool: BlockPool, seq: int, count: int) -> list[int]:
    """Blocks that `seq` filled, published and let go, the last one first."""
    blocks = pool.allocate(count, seq)
    for block in blocks:
        pool.retain(block)
    pool.free(blocks[::-1], seq)
    return blocks


def test_the_life_of_a_block() -> None:
    pool, evicted = make_pool(2)
    (block,) = pool.allocate(1, 7)
    assert (pool.num_free, pool.num_cached, pool.num_used, pool.num_shared) == (1, 0, 1, 0)
    pool.share(block, 8)
    assert (pool.num_used, pool.num_shared) == (1, 1)
    pool.retain(block)
    pool.free([block], 7)
    assert (pool.num_used, pool.num_shared) == (1, 0)
    pool.free([block], 8)
    assert pool.is_available(block)
    assert (pool.num_free, pool.num_cached, pool.num_used) == (1, 1, 0)
    pool.share(block, 9)
    assert not pool.is_available(block)
    pool.free([block], 9)
    assert pool.allocate(2, 10) == [1 - block, block]
    assert evicted == [block]
    pool.free([block], 10)
    assert not pool.is_available(block)  # what was kept of it went with the eviction
    assert pool.drain_events().log == (
        (C.GIVEN, block, 7),
        (C.SHARED, block, 8),
        (C.LEFT, block, 7),
        (C.CACHED, block, 8),
        (C.SHARED, block, 9),
        (C.CACHED, block, 9),
        (C.GIVEN, 1 - block, 10),
        (C.EVICTED, block, -1),
        (C.GIVEN, block, 10),
        (C.FREED, block, 10),
    )
    assert pool.drain_events().log == ()


def test_a_block_freed_last_is_given_first() -> None:
    pool, _evicted = make_pool(4)
    blocks = pool.allocate(3, 1)
    pool.free(blocks[::-1], 1)
    assert pool.allocate(1, 2) == blocks[:1]


def test_the_life_of_a_pinned_block() -> None:
    """Pinned while cached, held by two and let go again, it is never evicted until it is let go."""
    pool, evicted = make_pool(3)
    (block,) = cache(pool, 1, 1)
    pool.drain_events()
    pool.pin(block)
    assert (pool.num_cached, pool.num_available, pool.num_pinned) == (1, 2, 1)
    assert pool.copy().states.count("p") == 1
    pool.share(block, 2)
    pool.share(block, 3)
    pool.free([block], 2)
    pool.free([block], 3)
    others = pool.allocate(2, 4)
    assert (pool.num_available, evicted) == (0, [])
    pool.free(others, 4)
    pool.unpin(block)
    assert (pool.num_available, pool.num_pinned) == (3, 0)
    pool.allocate(3, 5)
    assert evicted == [block]
    log = pool.drain_events().log
    assert [entry for entry in log if entry[1] == block] == [
        (C.PINNED, block, -1),
        (C.SHARED, block, 2),
        (C.SHARED, block, 3),
        (C.LEFT, block, 2),
        (C.PINNED, block, 3),
        (C.UNPINNED, block, -1),
        (C.EVICTED, block, -1),
        (C.GIVEN, block, 5),
    ]


@pytest.mark.parametrize(
    "tables",
    [
        [],
        [(1, [0])],
        [(1, [0, 1]), (2, [1])],
        [(1, [0]), (2, [1])],
        [(1, [0, 1, 2])],
    ],
)
def test_check_sees_what_is_wrong(tables: list[tuple[int, list[int]]]) -> None:
    pool, _evicted = make_pool(3)
    assert pool.allocate(2, 1) == [0, 1]
    pool.check([(1, [0, 1])])
    with pytest.raises(AssertionError):
        pool.check(tables)


class PoolMachine(RuleBasedStateMachine):
    """The pool against sets and lists that know nothing of its stacks and dictionaries."""

    @initialize(num_blocks=st.integers(1, 12))
    def start(self, num_blocks: int) -> None:
        self.pool, self.evicted = make_pool(num_blocks)
        self.tables: dict[int, list[int]] = {}
        self.kept: set[int] = set()
        self.cached: list[int] = []
        self.reserved: dict[int, int] = {}
        self.pinned: set[int] = set()
        self.replay = PoolReplay(num_blocks)

    @rule(seq=st.integers(0, 4), count=st.integers(0, 5), reserve=st.booleans())
    def give(self, seq: int, count: int, reserve: bool) -> None:
        free = self.pool.num_free
        count = min(count, self.pool.num_available)
        expected = self.cached[: max(0, count - free)]
        del self.cached[: max(0, count - free)]
        self.kept -= set(expected)
        self.evicted.clear()
        blocks = self.pool.allocate(count, seq, reserve=reserve)
        assert self.evicted == expected
        assert len(set(blocks)) == count
        assert self.pinned.isdisjoint(blocks)
        self.tables.setdefault(seq, []).extend(blocks)
        if reserve:
            self.reserved |= dict.fromkeys(blocks, seq)

    @precondition(lambda self: self.reserved)
    @rule(pick=st.integers(0, 100))
    def fill(self, pick: int) -> None:
        block = sorted(self.reserved)[pick % len(self.reserved)]
        del self.reserved[block]
        self.pool.fill(block)

    @precondition(lambda self: self.kept)
    @rule(pick=st.integers(0, 100))
    def pin(self, pick: int) -> None:
        block = sorted(self.kept)[pick % len(self.kept)]
        self.pool.pin(block)
        self.pinned.add(block)
        if block in self.cached:
            self.cached.remove(block)

    @precondition(lambda self: self.pinned)
    @rule(pick=st.integers(0, 100))
    def unpin(self, pick: int) -> None:
        block = sorted(self.pinned)[pick % len(self.pinned)]
        self.pool.unpin(block)
        self.pinned.remove(block)
        if not any(block in table for table in self.tables.values()):
            self.cached.append(block)

    @precondition(lambda self: self.kept)
    @rule(seq=st.integers(0, 4), pick=st.integers(0, 100))
    def share(self, seq: int, pick: int) -> None:
        block = sorted(self.kept)[pick % len(self.kept)]
        if block in self.cached:
            self.cached.remove(block)
        self.pool.share(block, seq)
        self.tables.setdefault(seq, []).append(block)

    @rule(seq=st.integers(0, 4), pick=st.integers(0, 100))
    def keep(self, seq: int, pick: int) -> None:
        if table := self.tables.get(seq):
            block = table[pick % len(table)]
            if block in self.reserved:
                return
            self.pool.retain(block)
            self.kept.add(block)

    @rule(seq=st.integers(0, 4))
    def release(self, seq: int) -> None:
        table = self.tables.pop(seq, [])[::-1]
        self.pool.free(table, seq)
        for i, block in enumerate(table):
            held = block in table[i + 1 :] or any(block in t for t in self.tables.values())
            self.reserved.pop(block, None)
            if block in self.kept and not held and block not in self.pinned:
                self.cached.append(block)

    @invariant()
    def agrees(self) -> None:
        pool = self.pool
        pool.check(self.tables.items())
        self.replay.apply(pool.drain_events())
        held = Counter(block for table in self.tables.values() for block in table)
        pinned = self.pinned - held.keys()
        assert pool.num_cached == len(self.cached) + len(pinned)
        assert pool.num_available == pool.num_free + len(self.cached)
        assert (pool.num_pinned, pool.num_reserved) == (len(self.pinned), len(self.reserved))
        assert pool.num_used == len(held)
        view = pool.copy()
        assert (view.counts.pinned, view.counts.reserved) == (len(pinned), len(self.reserved))
        assert pool.num_shared == sum(count > 1 for count in held.values())
        assert pool.num_free + pool.num_cached + pool.num_used == pool.num_blocks
        assert view.states == self.replay.states
        assert all(view.states[block] == "p" for block in pinned)
        assert all(view.states[block] == "r" for block in self.reserved)
        assert {block: len(holders) for block, holders in self.replay.holders.items()} == held
        for block in range(pool.num_blocks):
            assert pool.is_available(block) == (block in self.cached)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=80, stateful_step_count=40)
