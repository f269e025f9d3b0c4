"""The prefix index: chained hashes, one block for each."""

from __future__ import annotations

import sys
from array import array

from hypothesis import given
from hypothesis import strategies as st

from engine.cache.manager import Content, PrefixIndex, block_hash, root_hash

TOKENS = st.lists(st.integers(0, 2**32 - 1), min_size=4, max_size=4)


def chain(key: str, blocks: list[list[int]]) -> list[bytes]:
    hashes = [root_hash(key)]
    for block in blocks:
        hashes.append(block_hash(hashes[-1], block))
    return hashes[1:]


@given(st.lists(TOKENS, max_size=4), st.lists(TOKENS, max_size=4))
def test_equal_hashes_mean_equal_prefixes(one: list[list[int]], other: list[list[int]]) -> None:
    for i, (a, b) in enumerate(zip(chain("k", one), chain("k", other), strict=False)):
        assert (a == b) == (one[: i + 1] == other[: i + 1])


def test_ids_do_not_run_into_each_other() -> None:
    root = root_hash("k")
    assert block_hash(root, [1, 23]) != block_hash(root, [12, 3])
    assert block_hash(root, [1]) != block_hash(root, [1, 0])
    assert block_hash(root, [256]) != block_hash(root, [1])


def test_the_key_is_in_every_hash() -> None:
    blocks = [[1, 2], [3, 4]]
    assert set(chain("a", blocks)).isdisjoint(chain("b", blocks))


def content(hash: bytes) -> Content:
    return Content(hash, 0, array("I"))


def test_of_equal_blocks_the_first_is_kept() -> None:
    index = PrefixIndex(8)
    one, two = chain("k", [[1], [2]])
    assert index.add(5, content(one))
    assert not index.add(6, content(one))
    assert index.add(6, content(two))
    assert (index.find(one), index.find(two), len(index)) == (5, 6, 2)


def test_a_dropped_block_can_hold_something_else() -> None:
    index = PrefixIndex(8)
    one, two = chain("k", [[1], [2]])
    index.add(5, content(one))
    index.remove(5)
    assert index.find(one) is None
    assert len(index) == 0
    assert index.add(5, content(two))
    assert index.add(6, content(one))
    index.remove(5)
    assert (index.find(one), index.find(two)) == (6, None)


def test_an_index_has_its_room_from_the_start() -> None:
    index = PrefixIndex(100)
    before = sys.getsizeof(index._blocks)
    for block in range(1000):
        if block >= 100:
            index.remove(block % 100)
        index.add(block % 100, content(block.to_bytes(32, "big")))
    assert (len(index), sys.getsizeof(index._blocks)) == (100, before)
