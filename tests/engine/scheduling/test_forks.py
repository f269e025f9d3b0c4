"""Forks: a live request gives a copy what both have in common (SOSP'23, section 4.4)."""

from __future__ import annotations

import pytest

from engine.api.config import EngineConfig
from engine.api.lifecycle import RequestState
from engine.batch.plan import Request
from engine.cache.manager import KVCache
from engine.scheduling.forks import Forks
from tests.support.harness import compute, let_go, make_request, say


def make_cache() -> KVCache:
    return KVCache(EngineConfig(num_blocks=8, block_size=4, max_model_len=64), "key")


def running(cache: KVCache, tokens: int, committed: int | None = None) -> Request:
    request = make_request(1, range(tokens))
    cache.extend(request, tokens)
    request.state = RequestState.RUNNING
    request.num_computed_tokens = tokens
    request.num_committed_tokens = tokens if committed is None else committed
    return request


@pytest.mark.parametrize(
    ("prompt", "committed", "common"),
    [
        (range(10), 10, 9),  # one token has to run
        (range(20), 10, 10),
        (range(20), 6, 6),  # the step of the others has not ended
        ([0, 1, 2, 99, 4], 10, 3),
        ([99], 10, 0),
        (range(1), 10, 0),
        (range(10), 0, 0),
    ],
)
def test_in_common_are_equal_tokens_whose_step_has_ended(
    prompt: range | list[int], committed: int, common: int
) -> None:
    cache = make_cache()
    source = running(cache, 10, committed)
    assert Forks(cache).common(make_request(2, prompt, fork_of=source)) == common


@pytest.mark.parametrize("state", ["WAITING", "PREEMPTED", "FINISHED"])
def test_one_that_does_not_run_has_nothing_to_give(state: str) -> None:
    cache = make_cache()
    source = running(cache, 10)
    source.state = RequestState[state]
    assert Forks(cache).common(make_request(2, range(10), fork_of=source)) == 0
    assert Forks(cache).common(make_request(3, range(10))) == 0


def test_outputs_are_in_common_too() -> None:
    cache = make_cache()
    source = make_request(1, range(6))
    say(source, [70, 71, 72])
    cache.extend(source, 8)
    source.state = RequestState.RUNNING
    source.num_computed_tokens = source.num_committed_tokens = 8
    turn = make_request(2, [*range(6), 70, 71, 72, 5], fork_of=source)
    assert Forks(cache).common(turn) == 8
    assert Forks(cache).common(make_request(3, [*range(6), 70, 5], fork_of=source)) == 7


def test_full_blocks_are_shared_and_the_last_partial_one_is_copied() -> None:
    cache = make_cache()
    source = running(cache, 10)
    cache.publish(source, 10)
    fork = make_request(2, range(10), fork_of=source)
    forks = Forks(cache)
    forks.start(fork, 9)
    assert forks.copies == {fork: (2, 3)}
    assert (source.block_table, fork.block_table) == ([0, 1, 2], [0, 1, 3])
    assert (fork.num_computed_tokens, fork.num_published) == (9, 2)
    assert fork.num_committed_tokens == 8  # the copy is made by its step
    assert cache.pool.copy().states == "ssuuffff"
    cache.pool.check([(1, source.block_table), (2, fork.block_table)])
    let_go(cache, source)
    let_go(cache, fork)
    assert cache.pool.num_used == 0


def test_what_ends_with_a_block_needs_no_copy() -> None:
    cache = make_cache()
    source = running(cache, 8)
    fork = make_request(2, range(9), fork_of=source)
    forks = Forks(cache)
    forks.start(fork, 8)
    assert forks.copies == {}
    assert fork.block_table == source.block_table == [0, 1]


def test_a_fork_publishes_what_its_source_has_not() -> None:
    """Prefix caching was off when the source was computed."""
    cache = make_cache()
    source = running(cache, 8)
    fork = make_request(2, range(12), fork_of=source)
    Forks(cache).start(fork, 8)
    assert fork.num_published == 0
    compute(cache, fork, 12)
    assert cache.match(make_request(3, range(13))) == fork.block_table
    let_go(cache, fork)
    let_go(cache, source)
    assert (cache.pool.num_cached, cache.pool.num_used) == (3, 0)
