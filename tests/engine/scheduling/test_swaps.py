"""Victims that keep what they have computed in host memory, one step at a time."""

from __future__ import annotations

from engine.api.lifecycle import RequestState
from engine.api.waiting import in_words
from engine.batch.plan import Request
from tests.engine.scheduling.bench import Bench
from tests.support.harness import make_request


class TestSwap:
    """Victims that keep what they have computed in host memory."""

    @staticmethod
    def bench(**options: int) -> tuple[Bench, Request]:
        """A bench whose only request was swapped out with 6 of its 12 tokens computed."""
        bench = Bench(**({"num_host_blocks": 8} | options), preemption="swap")
        victim = bench.run(1, 6, 12)
        held = list(victim.block_table)
        bench.composer().preempt(victim)
        assert bench.books.swaps.out == {victim: list(zip(held, (0, 1), strict=True))}
        return bench, victim

    def test_its_blocks_need_room(self) -> None:
        bench, victim = self.bench(num_blocks=4)
        bench.run(2, 8, 8)
        composer = bench.composer()
        assert not composer.admit(victim)
        assert in_words(composer.wait) == "no blocks: it needs 3, 1 of 4 are free for it"
        assert victim.host_blocks == [0, 1]

    def test_taken_again_in_the_same_step_it_stays_where_it_is(self) -> None:
        """By a policy that admits before it schedules what runs."""
        bench, victim = self.bench()
        composer = bench.composer()
        assert composer.admit(victim)
        composer.preempt(victim)
        assert (victim.num_computed_tokens, victim.host_blocks) == (6, [0, 1])
        assert (bench.books.swaps.back, bench.cache.pool.num_free) == ({}, 8)
        bench.books.swaps.check((), (victim,))

    def test_what_may_be_wrong_is_not_kept(self) -> None:
        bench, victim = self.bench()
        bench.books.swaps.drain()
        composer = bench.composer()
        assert composer.admit(victim)
        composer.preempt(victim, keep=False)
        assert (victim.num_computed_tokens, victim.host_blocks) == (0, [])
        assert (bench.books.swaps.back, bench.cache.host.num_used) == ({}, 0)

    def test_the_cache_may_have_more_of_it_by_now(self) -> None:
        bench, victim = self.bench()
        other = make_request(2, [*victim.prompt_token_ids, 7])
        other.state = RequestState.RUNNING
        bench.running.append(other)
        bench.cache.extend(other, 12)
        other.num_computed_tokens = 12
        bench.cache.publish(other, 12)
        composer = bench.composer()
        assert composer.admit(victim)
        assert composer.rows[victim][1:3] == (8, 4)
        assert victim.block_table[:2] == other.block_table[:2]
        assert (bench.books.swaps.out, bench.books.swaps.back) == ({}, {})
        assert bench.cache.host.num_used == 0

    def test_one_that_was_admitted_just_now_has_nothing_to_keep(self) -> None:
        """Its blocks are still in the cache."""
        bench = Bench(num_host_blocks=8, preemption="swap")
        first = bench.run(1, 8, 8)
        bench.cache.publish(first, 8)
        request = make_request(2, [*first.prompt_token_ids, 1, 2])
        bench.waiting.push(request)
        composer = bench.composer()
        assert composer.admit(request)
        composer.preempt(request)
        assert (request.num_computed_tokens, request.host_blocks) == (0, [])

    def test_what_is_yet_to_be_copied_for_a_fork_is_not_kept(self) -> None:
        """Its plan computed nothing, so that nobody was told to copy."""
        bench = Bench(num_host_blocks=8, preemption="swap")
        source = bench.run(1, 10, 10)
        source.num_committed_tokens = 10
        fork = make_request(2, source.prompt_token_ids, fork_of=source)
        bench.waiting.push(fork)
        assert bench.composer().admit(fork)
        bench.composer().preempt(fork)
        assert (fork.num_computed_tokens, fork.host_blocks, bench.books.forks.copies) == (0, [], {})
