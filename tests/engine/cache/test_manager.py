"""The cache as the scheduler sees it: tables, hits, publishing, letting go."""

from __future__ import annotations

import sys
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.config import EngineConfig
from engine.api.lifecycle import RequestState
from engine.api.telemetry import BlockChange
from engine.cache.manager import Content, KVCache, PrefixIndex, Reclaim, block_hash, root_hash
from engine.scheduling.forks import Forks
from tests.support.harness import compute, let_go, make_request, say


def make_cache(num_blocks: int = 8, block_size: int = 4) -> KVCache:
    config = EngineConfig(
        num_blocks=num_blocks, block_size=block_size, max_model_len=64, max_num_seqs=4
    )
    return KVCache(config, "key")


def test_blocks_are_given_as_tokens_arrive() -> None:
    cache = make_cache()
    request = make_request(1, range(20))
    assert cache.extend(request, 3) == (0,)
    assert cache.extend(request, 4) == ()
    assert cache.missing(request, 12) == 2
    assert cache.extend(request, 9) == (1, 2)
    assert request.block_table == [0, 1, 2]
    assert cache.missing(request, 5) == 0


def test_a_hit_shares_blocks_and_counts_their_tokens() -> None:
    cache = make_cache()
    first, second = make_request(1, range(11)), make_request(2, range(11))
    compute(cache, first, 11)
    hit = cache.match(second)
    assert hit == [0, 1]
    cache.adopt(second, hit)
    assert (second.block_table, second.num_computed_tokens, second.num_published) == (hit, 8, 2)
    cache.pool.check([(1, first.block_table), (2, second.block_table)])
    assert cache.pool.num_shared == 2


@pytest.mark.parametrize(
    ("ours", "theirs", "is_hit"),
    [
        ("", "", True),
        ("a", "a", True),
        ("a", "", False),
        ("", "a", False),
        ("a", "b", False),
        ("a", "a\ud800", False),  # no Unicode, as JSON may spell it
    ],
)
def test_only_requests_of_one_salt_find_each_other_s_blocks(
    ours: str, theirs: str, is_hit: bool
) -> None:
    cache = make_cache()
    first = make_request(1, range(11), cache_salt=theirs)
    compute(cache, first, 11)
    second = make_request(2, range(11), cache_salt=ours, fork_of=first)
    assert cache.match(second) == ([0, 1] if is_hit else [])
    first.state, first.num_committed_tokens = RequestState.RUNNING, 11
    assert Forks(cache).common(second) == (10 if is_hit else 0)


def test_a_salt_that_spells_a_block_finds_no_chain_behind_it() -> None:
    """Else a client would have another's blocks computed into its own place."""
    cache = make_cache()
    tokens = [int.from_bytes(b"abcd", sys.byteorder)] * 4 + list(range(5))
    compute(cache, make_request(1, tokens), 9)
    salted = make_request(2, tokens[4:], cache_salt="abcd" * 4)
    assert cache.match(salted) == []


def test_the_hit_ends_where_the_tokens_differ_or_the_blocks_are_gone() -> None:
    cache = make_cache(num_blocks=5)
    first = make_request(1, range(20))
    compute(cache, first, 20)
    other = [*range(8), 99, *range(9, 20)]
    assert cache.match(make_request(2, other)) == first.block_table[:2]
    table = list(first.block_table)
    let_go(cache, first)
    cache.extend(make_request(3, range(500, 520)), 8)  # evicts the last two
    assert cache.match(make_request(4, range(20))) == table[:3]


def test_outputs_are_found_too() -> None:
    """The next turn of a conversation hits what was generated, not only what was asked."""
    cache = make_cache()
    request = make_request(1, range(6))
    say(request, [70, 71, 72, 73, 74])
    compute(cache, request, 10)
    turn = make_request(2, [*range(6), 70, 71, 72, 73, 74])
    assert cache.match(turn) == request.block_table[:2]


def test_equal_blocks_are_kept_once() -> None:
    """Two sequences computed the same at once: one copy is found, the other becomes free."""
    cache = make_cache()
    twins = [make_request(1, range(9)), make_request(2, range(9))]
    for twin in twins:
        cache.extend(twin, 9)
    for twin in twins:
        cache.publish(twin, 9)
    assert len(cache.index) == 2
    assert twins[1].num_published == 2
    tables = [list(twin.block_table) for twin in twins]
    for twin in reversed(twins):
        let_go(cache, twin)
    assert (cache.pool.num_cached, cache.pool.num_free) == (2, 6)
    assert cache.match(make_request(3, range(9))) == tables[0][:2]


def test_publishing_again_does_nothing() -> None:
    cache = make_cache()
    request = make_request(1, range(12))
    compute(cache, request, 7)
    assert (len(cache.index), request.num_published) == (1, 1)
    cache.publish(request, 7)
    cache.publish(request, 3)
    assert (len(cache.index), request.num_published) == (1, 1)
    compute(cache, request, 12)
    assert len(cache.index) == 3


def test_what_was_not_published_in_time_is_published_later() -> None:
    """Prefix caching was off for the first blocks and is on for the next."""
    cache = make_cache()
    request = make_request(1, range(12))
    cache.extend(request, 8)
    compute(cache, request, 12)
    assert cache.match(make_request(2, range(13))) == request.block_table


def test_a_cached_hit_is_not_obtainable_as_well() -> None:
    cache = make_cache(num_blocks=4)
    first = make_request(1, range(9))
    compute(cache, first, 9)
    hit = cache.match(make_request(2, range(9)))
    assert cache.num_obtainable(hit) == 1  # held by first: nothing lost
    let_go(cache, first)
    assert cache.num_obtainable(hit) == 2
    assert cache.num_obtainable([]) == 4


def test_a_table_is_taken_in_reverse() -> None:
    cache = make_cache()
    request = make_request(1, range(12))
    compute(cache, request, 12)
    assert cache.detach(request) == [2, 1, 0]
    assert (request.block_table, request.num_published) == ([], 0)
    assert len(request.block_hashes) == 3  # its tokens are what they were


class TestReserve:
    """Slots for tokens to come: Orca's way, and a state of their own."""

    def test_what_is_missing_is_set_aside_and_used_in_order(self) -> None:
        cache = make_cache()
        request = make_request(1, range(6))
        cache.reserve(request, 14)
        assert (cache.pool.num_reserved, cache.pool.num_available) == (4, 4)
        assert cache.missing(request, 16) == 0
        assert cache.missing(request, 17) == 1
        assert cache.extend(request, 6) == (0, 1)
        assert cache.extend(request, 8) == ()
        assert cache.extend(request, 9) == (2,)
        assert (request.block_table, request.reserved_blocks) == ([0, 1, 2], [3])
        assert cache.pool.copy().states == "uuurffff"
        cache.pool.check([(1, request.block_table + request.reserved_blocks)])

    def test_past_the_reservation_blocks_are_given(self) -> None:
        cache = make_cache()
        request = make_request(1, range(6))
        cache.reserve(request, 8)
        assert cache.extend(request, 9) == (0, 1, 2)
        assert (cache.pool.num_reserved, request.reserved_blocks) == (0, [])

    def test_what_is_reserved_is_let_go_before_the_table_from_its_tail(self) -> None:
        cache = make_cache()
        request = make_request(1, range(6))
        cache.reserve(request, 14)
        compute(cache, request, 6)
        assert cache.detach(request) == [3, 2, 1, 0]
        assert (request.block_table, request.reserved_blocks) == ([], [])


class TestEvictionOrder:
    """Least recently let go first; within a sequence its tail before its head."""

    def test_tails_before_heads_and_old_before_new(self) -> None:
        cache = make_cache(num_blocks=6)
        old, new = make_request(1, range(12)), make_request(2, range(100, 112))
        compute(cache, old, 12)
        compute(cache, new, 12)
        tables = list(old.block_table), list(new.block_table)
        let_go(cache, old)
        let_go(cache, new)
        again = make_request(3, range(5))  # old's first block is looked at again
        cache.adopt(again, cache.match(again))
        let_go(cache, again)
        cache.pool.drain_events()
        cache.extend(make_request(4, range(500, 524)), 24)
        evicted = cache.pool.drain_events().blocks(BlockChange.EVICTED)
        assert evicted == (*tables[0][:0:-1], *tables[1][::-1], tables[0][0])

    def test_what_is_free_goes_before_what_is_cached(self) -> None:
        cache = make_cache(num_blocks=4)
        first = make_request(1, range(9))
        compute(cache, first, 9)
        let_go(cache, first)
        cache.extend(make_request(2, range(500, 508)), 8)
        assert cache.pool.drain_events().blocks(BlockChange.EVICTED) == ()
        assert len(cache.match(make_request(3, range(9)))) == 2


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


def test_blocks_are_reclaimed_at_once_without_a_step() -> None:
    cache = make_cache()
    reclaim = Reclaim(cache)
    request = make_request(1, range(8))
    cache.extend(request, 8)
    reclaim.free(1, cache.detach(request))
    assert (cache.pool.num_free, reclaim.num_pending, request.block_table) == (8, 0, [])


def test_blocks_are_reclaimed_with_the_last_step_that_holds_them() -> None:
    cache = make_cache()
    reclaim = Reclaim(cache)
    both, second = make_request(1, range(8)), make_request(2, range(8))
    cache.extend(both, 8)
    cache.extend(second, 4)
    reclaim.step_begins(1, {1, 2})
    reclaim.step_begins(2, {1})
    reclaim.free(1, cache.detach(both))
    reclaim.free(2, cache.detach(second))
    assert (reclaim.num_pending, cache.pool.num_free) == (3, 5)
    assert reclaim.pending_tables() == [(1, [1, 0]), (2, [2])]
    reclaim.step_ended(1)
    assert (reclaim.num_pending, cache.pool.num_free) == (2, 6)
    reclaim.step_ended(2)
    assert (reclaim.num_pending, cache.pool.num_free) == (0, 8)


def test_a_step_that_does_not_name_them_is_not_waited_for() -> None:
    cache = make_cache()
    reclaim = Reclaim(cache)
    request = make_request(1, range(8))
    cache.extend(request, 8)
    reclaim.step_begins(1, {2})
    reclaim.free(1, cache.detach(request))
    assert cache.pool.num_free == 8


def test_preempted_and_admitted_again_under_the_same_step() -> None:
    """Both tables of a sequence wait, each for its own step."""
    cache = make_cache()
    reclaim = Reclaim(cache)
    request = make_request(1, range(8))
    cache.extend(request, 8)
    reclaim.step_begins(1, {1})
    reclaim.free(1, cache.detach(request))
    cache.extend(request, 4)
    reclaim.step_begins(2, {1})
    reclaim.free(1, cache.detach(request))
    cache.pool.check(reclaim.pending_tables())
    reclaim.step_ended(1)
    assert cache.pool.num_free == 7
    reclaim.step_ended(2)
    assert cache.pool.num_free == 8
