"""One step being put together: budget, slots, blocks, preemption."""

from __future__ import annotations

import pytest

from engine.api.knobs import Knobs
from engine.api.lifecycle import RequestState
from engine.api.waiting import in_words
from tests.engine.scheduling.bench import Bench
from tests.support.harness import make_request


class TestSchedule:
    @pytest.mark.parametrize(
        ("budget", "limit", "planned"),
        [(20, None, 10), (7, None, 7), (20, 4, 4), (3, 4, 3), (20, 0, 0), (20, 30, 10)],
    )
    def test_the_least_of_gap_budget_and_limit(
        self, budget: int, limit: int | None, planned: int
    ) -> None:
        bench = Bench(max_num_seqs=1, max_num_batched_tokens=budget)
        request = bench.run(1, 2, 12)
        composer = bench.composer()
        assert composer.schedule(request, limit) == planned
        assert composer.budget == budget - planned
        if planned:
            row = composer.rows[request]
            assert (row.start, row.count, row.prefill) == (2, planned, True)
            assert len(row.new_blocks) == -(-(2 + planned) // 4) - 1
        else:
            assert composer.rows == {}

    @pytest.mark.parametrize(("limit", "planned"), [(5, 5), (10**9, 20), (0, 0), (-3, 0)])
    def test_a_policy_may_give_a_step_fewer_tokens(self, limit: int, planned: int) -> None:
        bench = Bench(num_blocks=16, max_num_seqs=1, max_num_batched_tokens=20)
        request = bench.run(1, 2, 40)
        composer = bench.composer()
        composer.limit_budget(limit)
        assert composer.schedule(request) == planned
        assert (composer.max_budget, composer.budget) == (min(max(limit, 0), 20), 0)

    def test_what_is_reserved_is_used_before_anything_is_given(self) -> None:
        bench = Bench(num_blocks=4)
        request = bench.run(1, 4, 8)
        bench.cache.reserve(request, 12)
        held = request.block_table + request.reserved_blocks[::-1]
        bench.run(2, 4, 4)
        assert bench.cache.pool.num_available == 0
        composer = bench.composer()
        assert composer.schedule(request) == 4
        assert composer.rows[request].new_blocks == (held[1],)
        assert request.reserved_blocks == [held[2]]
        assert composer.preempted == []

    def test_no_more_than_the_request_may_have(self) -> None:
        bench = Bench()
        request = bench.run(1, 8, 8, max_output_tokens=2)
        request.num_in_flight, request.num_tokens = 1, 10  # its second token is being computed
        assert bench.composer().schedule(request) == 0

    def test_one_that_waits_gets_nothing(self) -> None:
        bench = Bench()
        request = bench.wait(1, 5)
        assert bench.composer().schedule(request) == 0


@pytest.mark.parametrize(
    ("knob", "order"),
    [
        ("lowest_priority", [3, 4, 2]),
        ("latest", [4, 3, 2]),
        ("least_computed", [2, 4, 3]),
    ],
)
def test_the_victim_is_the_one_that_the_knob_names(knob: str, order: list[int]) -> None:
    """Ties go to the latest arrival. The last of the four is the one that asks."""
    bench = Bench(num_blocks=9, victim=knob, max_num_batched_tokens=64)
    asks = bench.run(1, 12, 36, priority=9)
    bench.run(2, 4, 16, priority=1)
    bench.run(3, 8, 16, priority=0)
    bench.run(4, 8, 16, priority=0 if knob != "lowest_priority" else 1)
    composer = bench.composer()
    assert composer.schedule(asks) == 24
    assert [victim.ordinal for victim in composer.preempted] == order


class TestPreemption:
    def test_budget_and_row_of_a_planned_victim_are_given_back(self) -> None:
        bench = Bench(num_blocks=5, max_num_seqs=2, max_num_batched_tokens=4)
        low = bench.run(1, 9, 9)  # 3 blocks, room for two more tokens
        high = bench.run(2, 8, 8, priority=1)  # 2 blocks, both full
        composer = bench.composer()
        assert composer.schedule(low) == 1
        assert composer.budget == 3
        assert composer.schedule(high) == 1
        assert composer.budget == 3
        assert list(composer.rows) == [high]
        assert composer.preempted == [low]
        assert bench.running == [high]
        assert bench.waiting.first() is low
        assert (low.state, low.num_computed_tokens, low.block_table, low.num_preemptions) == (
            RequestState.PREEMPTED,
            0,
            [],
            1,
        )
        bench.cache.pool.check([(2, high.block_table)])

    def test_a_victim_with_new_blocks_of_this_step_gives_those_back_too(self) -> None:
        bench = Bench(num_blocks=5, max_num_seqs=2, max_num_batched_tokens=4)
        low = bench.run(1, 8, 8)
        high = bench.run(2, 8, 8, priority=1)
        composer = bench.composer()
        assert composer.schedule(low) == 1  # takes the last block
        assert bench.cache.pool.num_available == 0
        assert composer.schedule(high) == 1
        assert composer.preempted == [low]
        bench.cache.pool.check([(2, high.block_table)])

    def test_the_victim_may_be_the_one_that_asks(self) -> None:
        bench = Bench(num_blocks=4)
        first, last = bench.run(1, 8, 8), bench.run(2, 8, 8)
        composer = bench.composer()
        assert composer.schedule(last) == 0
        assert composer.preempted == [last]
        assert composer.schedule(first) == 1

    def test_as_many_as_are_needed(self) -> None:
        bench = Bench(num_blocks=6, max_num_batched_tokens=64)
        big = bench.run(1, 8, 24)
        for ordinal in range(2, 6):
            bench.run(ordinal, 4, 4)
        composer = bench.composer()
        assert composer.schedule(big) == 16
        assert [victim.ordinal for victim in composer.preempted] == [5, 4, 3, 2]

    def test_nobody_loses_blocks_while_some_are_on_their_way(self) -> None:
        bench = Bench(num_blocks=4)
        first, gone = bench.run(1, 8, 8), bench.run(2, 8, 8)
        bench.reclaim.step_begins(1, {2})
        bench.running.remove(gone)
        bench.reclaim.free(2, bench.cache.detach(gone))
        composer = bench.composer()
        assert composer.schedule(first) == 0
        assert composer.preempted == composer.stranded == []


class TestAdmit:
    def test_need_stands_beside_what_was_promised(self) -> None:
        """8 blocks: 1 held, 3 promised to the half-computed prompt, 4 for others."""
        for prompt, fits in ((16, True), (17, False)):
            bench = Bench(prefix_caching=False)
            bench.run(1, 4, 16)
            request = bench.wait(2, prompt)
            composer = bench.composer()
            assert composer.admit(request) is fits
            if not fits:
                reason = "no blocks: it needs 5, 4 of 8 are free for it"
                assert in_words(composer.wait) == in_words(composer.wait_of(request)) == reason

    def test_obstacles_in_order(self) -> None:
        bench = Bench(max_num_seqs=1, max_num_batched_tokens=4, paused=True, draining=True)
        request = bench.wait(1, 3)
        assert in_words(bench.composer().wait_of(request)) == "paused"
        bench.knobs = Knobs(draining=True)
        assert in_words(bench.composer().wait_of(request)) == "draining: nothing new is admitted"
        bench.knobs = Knobs(max_num_seqs=1, max_num_batched_tokens=4)
        assert in_words(bench.composer().wait_of(request)) == ""
        request.num_in_flight = 1
        assert in_words(bench.composer().wait_of(request)) == "its last step is still running"
        request.num_in_flight = 0
        running = bench.run(2, 0, 4)
        assert in_words(bench.composer().wait_of(request)) == "no slot: 1 of 1 are taken"
        bench.knobs = Knobs(max_num_seqs=2, max_num_batched_tokens=4)
        composer = bench.composer()
        composer.schedule(running)
        assert in_words(composer.wait_of(request)) == "no budget: the step's 4 tokens are used up"

    def test_one_with_a_prompt_to_run_whole_waits_for_the_budget(self) -> None:
        """12 tokens a step, 5 of them a decode and a chunk: 8 would be too many, 7 are not."""
        for prompt, fits in ((7, True), (8, False)):
            bench = Bench(num_blocks=32, max_num_seqs=4, max_num_batched_tokens=12)
            decode, chunk = bench.run(1, 4, 4), bench.run(2, 4, 20)
            composer = bench.composer()
            composer.schedule(decode)
            composer.schedule(chunk, 4)
            assert composer.admit(bench.wait(3, prompt), whole=True) is fits
            if not fits:
                assert (
                    in_words(composer.wait)
                    == "no budget: its 8 tokens must run in one step, 7 are left"
                )

    def test_one_that_no_step_would_hold_whole_runs_in_chunks(self) -> None:
        """12 tokens a step, 1 of them a decode: 11 fit in a step that has no other prompt."""
        for prompt, fits in ((11, False), (12, True)):
            bench = Bench(num_blocks=32, max_num_seqs=4, max_num_batched_tokens=12)
            decode, chunk = bench.run(1, 4, 4), bench.run(2, 4, 20)
            composer = bench.composer()
            composer.schedule(decode)
            composer.schedule(chunk, 4)
            request = bench.wait(3, prompt)
            assert composer.admit(request, whole=True) is fits
            assert not fits or composer.rows[request].count == 7

    def test_what_is_cached_need_not_run_whole(self) -> None:
        bench = Bench(num_blocks=32, max_num_seqs=4, max_num_batched_tokens=12)
        first = bench.run(1, 16, 16)
        bench.cache.publish(first, 16)
        request = make_request(2, [*first.prompt_token_ids, *range(11)])
        bench.waiting.push(request)
        composer = bench.composer()
        composer.schedule(first)
        assert composer.admit(request, whole=True)
        assert composer.rows[request].count == 11

    @pytest.mark.parametrize(("outputs", "fits"), [(16, True), (17, False)])
    def test_reserving_needs_blocks_for_all_that_it_may_have(
        self, outputs: int, fits: bool
    ) -> None:
        """8 blocks, 3 of them held: 20 tokens fit beside, 21 do not."""
        bench = Bench()
        bench.run(1, 9, 9)
        request = bench.wait(2, 4, max_output_tokens=outputs)
        composer = bench.composer()
        assert composer.admit(request, reserve=True) is fits
        if fits:
            assert (len(request.block_table), len(request.reserved_blocks)) == (1, 4)
            assert bench.cache.pool.num_reserved == 4
        else:
            assert in_words(composer.wait) == "no blocks: it needs 6, 5 of 8 are free for it"

    def test_no_tokens_need_no_budget(self) -> None:
        """A slot and blocks only: how a request-level batch is gathered."""
        bench = Bench(max_num_seqs=2, max_num_batched_tokens=4)
        running = bench.run(1, 0, 4)
        request = bench.wait(2, 4)
        composer = bench.composer()
        composer.schedule(running)
        assert not composer.admit(request)
        assert in_words(composer.wait) == "no budget: the step's 4 tokens are used up"
        assert composer.admit(request, 0)
        assert in_words(composer.wait) == ""
        assert list(composer.rows) == [running]
        assert bench.running == [running, request]

    def test_without_tokens_a_fork_starts_from_nothing(self) -> None:
        """A copy that no row of its step goes with would be relied on if that step failed."""
        bench = Bench(prefix_caching=False)
        source = bench.run(1, 10, 10)
        source.num_committed_tokens = 10
        fork = make_request(2, source.prompt_token_ids, fork_of=source)
        bench.waiting.push(fork)
        composer = bench.composer()
        assert composer.admit(fork, 0)
        assert (fork.num_computed_tokens, fork.block_table, bench.books.forks.copies) == (0, [], {})

    def test_a_fork_that_is_preempted_at_once_is_not_copied(self) -> None:
        """By a policy that admits before it schedules what runs."""
        bench = Bench(prefix_caching=False)
        source = bench.run(1, 12, 12)
        source.num_committed_tokens = 12
        fork = make_request(2, source.prompt_token_ids, fork_of=source)
        bench.waiting.push(fork)
        composer = bench.composer()
        assert composer.admit(fork)
        assert bench.books.forks.copies
        composer.preempt(fork)
        assert (bench.books.forks.copies, composer.admitted, list(composer.rows)) == ({}, [], [])
        bench.cache.pool.check([(1, source.block_table)])

    @pytest.mark.parametrize("state", ["RUNNING", "FINISHED"])
    def test_one_that_does_not_wait_is_not_admitted(self, state: str) -> None:
        bench = Bench()
        other, request = bench.wait(1, 3), make_request(2, [1])
        request.state = RequestState[state]
        assert not bench.composer().admit(request)
        assert bench.waiting.head(9) == [other]


class TestGroups:
    """Members that have ended keep slot and blocks until the last one ends."""

    def test_preempting_the_last_live_member_frees_the_parked_ones(self) -> None:
        bench = Bench(num_blocks=4)
        ended, lives, other = (bench.run(i, 4, 4) for i in (1, 2, 3))
        composer = bench.composer()
        composer.start_group([ended, lives])
        bench.running.remove(ended)
        bench.groups.leave(ended, bench.cache.detach(ended))
        composer.preempt(lives)
        assert bench.cache.pool.num_free == 3
        assert bench.running == [other]
        assert bench.groups.num_parked == 0
        bench.cache.pool.check([(3, other.block_table)])
