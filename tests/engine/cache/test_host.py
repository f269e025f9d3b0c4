"""The books of the host pool."""

from __future__ import annotations

import pytest

from engine.cache.host import HostPool


def test_the_lowest_blocks_are_given_first() -> None:
    pool = HostPool(6)
    assert pool.allocate(3, 1) == [0, 1, 2]
    assert pool.allocate(2, 2) == [3, 4]
    pool.free([2, 0, 1])
    assert pool.allocate(2, 3) == [0, 1]
    assert (pool.num_free, pool.num_used) == (2, 4)
    pool.check([(2, [3, 4]), (3, [0, 1])])


@pytest.mark.parametrize(
    "tables",
    [[], [(1, [0])], [(1, [0, 1]), (2, [1])], [(2, [0, 1])], [(1, [0, 1, 2])]],
    ids=["lost", "one lost", "held twice", "by another", "free but held"],
)
def test_what_does_not_balance_is_found(tables: list[tuple[int, list[int]]]) -> None:
    pool = HostPool(3)
    pool.allocate(2, 1)
    pool.check([(1, [0, 1])])
    with pytest.raises(AssertionError):
        pool.check(tables)


def test_a_block_that_was_given_back_twice_is_an_error() -> None:
    pool = HostPool(2)
    blocks = pool.allocate(1, 1)
    pool.free(blocks)
    with pytest.raises(KeyError):
        pool.free(blocks)
