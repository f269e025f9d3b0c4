"""The cache as the scheduler sees it: tables, hits, publishing, letting go."""

from __future__ import annotations

import pytest

from engine.cache.manager import KVCache
from engine.config import EngineConfig
from engine.request import Request
from engine.telemetry import BlockChange
from tests.support.harness import make_request


def make_cache(num_blocks: int = 8, block_size: int = 4) -> KVCache:
    config = EngineConfig(
        num_blocks=num_blocks, block_size=block_size, max_model_len=64, max_num_seqs=4
    )
    return KVCache(config, "key")


def compute(cache: KVCache, request: Request, num_tokens: int) -> None:
    """Give blocks and publish, as if a step had run."""
    cache.extend(request, num_tokens)
    request.num_computed_tokens = num_tokens
    cache.publish(request, num_tokens)


def let_go(cache: KVCache, request: Request) -> None:
    cache.pool.release(cache.detach(request), request.ordinal)


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(0, 0), (1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3)]
)
def test_blocks_for(tokens: int, blocks: int) -> None:
    assert make_cache().blocks_for(tokens) == blocks


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
    request.output_token_ids = [70, 71, 72, 73, 74]
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


def test_an_evicted_block_is_not_found_and_not_shared() -> None:
    cache = make_cache(num_blocks=2)
    first = make_request(1, range(8))
    compute(cache, first, 8)
    let_go(cache, first)
    second = make_request(2, range(100, 108))
    cache.extend(second, 8)
    events = cache.pool.take_events()
    assert events.blocks(BlockChange.EVICTED) == (1, 0)
    assert len(cache.index) == 0
    assert cache.match(make_request(3, range(8))) == []


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
