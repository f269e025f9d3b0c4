"""Blocks that are given back: at once, or when the last step that names them has ended."""

from __future__ import annotations

from engine.api.config import EngineConfig
from engine.cache.manager import KVCache, Reclaim
from tests.support.harness import make_request


def make_cache() -> KVCache:
    return KVCache(EngineConfig(num_blocks=8, block_size=4, max_model_len=32), "key")


def test_at_once_without_a_step() -> None:
    cache = make_cache()
    reclaim = Reclaim(cache)
    request = make_request(1, range(8))
    cache.extend(request, 8)
    reclaim.free(1, cache.detach(request))
    assert (cache.pool.num_free, reclaim.num_pending, request.block_table) == (8, 0, [])


def test_with_the_last_step_that_holds_them() -> None:
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
