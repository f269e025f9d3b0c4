"""One step being put together: budget, slots, blocks, preemption."""

from __future__ import annotations

import pytest

from engine.cache.manager import KVCache
from engine.config import EngineConfig
from engine.knobs import Knobs
from engine.request import Request, RequestState
from engine.scheduling.composer import StepComposer
from engine.scheduling.queue import WaitingQueue
from engine.scheduling.reclaim import Reclaim
from tests.support.harness import make_request


class Bench:
    """The parts that a composer works on."""

    def __init__(self, num_blocks: int = 8, **knobs: object) -> None:
        config = EngineConfig(num_blocks=num_blocks, block_size=4, max_model_len=64)
        self.knobs = Knobs(**({"watermark": 0.0} | knobs))  # type: ignore[arg-type]
        self.cache = KVCache(config, "key")
        self.running: list[Request] = []
        self.waiting = WaitingQueue()
        self.reclaim = Reclaim(self.cache)

    def composer(self) -> StepComposer:
        return StepComposer(self.knobs, self.cache, self.running, self.waiting, self.reclaim)

    def run(self, ordinal: int, computed: int, prompt: int, **fields: object) -> Request:
        """A request that runs, `computed` of whose tokens are computed."""
        request = make_request(ordinal, range(ordinal * 100, ordinal * 100 + prompt), **fields)
        request.state = RequestState.RUNNING
        request.num_computed_tokens = computed
        self.cache.extend(request, computed)
        if computed >= prompt:
            request.output_token_ids = list(range(computed + 1 - prompt))
        self.running.append(request)
        return request

    def wait(self, ordinal: int, prompt: int, **fields: object) -> Request:
        request = make_request(ordinal, range(ordinal * 100, ordinal * 100 + prompt), **fields)
        self.waiting.push(request)
        return request


class TestSchedule:
    @pytest.mark.parametrize(
        ("budget", "chunk", "limit", "planned"),
        [
            (20, 0, None, 10),
            (7, 0, None, 7),
            (20, 4, None, 4),
            (3, 4, None, 3),
            (20, 6, 5, 5),
            (20, 5, 6, 5),
            (20, 0, 0, 0),
        ],
    )
    def test_the_least_of_gap_budget_chunk_and_limit(
        self, budget: int, chunk: int, limit: int | None, planned: int
    ) -> None:
        bench = Bench(max_num_seqs=1, max_num_batched_tokens=budget, prefill_chunk=chunk)
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

    def test_a_chunk_cap_does_not_touch_decodes(self) -> None:
        bench = Bench(max_num_seqs=1, prefill_chunk=1)
        request = bench.run(1, 8, 8)
        composer = bench.composer()
        assert composer.schedule(request) == 1
        assert not composer.rows[request].prefill

    def test_no_more_than_the_request_may_have(self) -> None:
        bench = Bench()
        request = bench.run(1, 8, 8, max_output_tokens=2)
        request.num_in_flight = 1  # its second token is being computed
        assert bench.composer().schedule(request) == 0

    def test_one_that_waits_gets_nothing(self) -> None:
        bench = Bench()
        request = bench.wait(1, 5)
        assert bench.composer().schedule(request) == 0


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
        bench.reclaim.free(gone)
        composer = bench.composer()
        assert composer.schedule(first) == 0
        assert composer.preempted == composer.stranded == []

    def test_alone_it_is_stranded(self) -> None:
        bench = Bench(num_blocks=2)
        request = bench.run(1, 8, 8)
        composer = bench.composer()
        assert composer.schedule(request) == 0
        assert composer.stranded == [request]
        assert bench.running == [request]


class TestAdmit:
    def test_it_gets_a_slot_its_prefix_and_tokens(self) -> None:
        bench = Bench()
        first = bench.run(1, 8, 8)
        bench.cache.publish(first, 8)
        request = make_request(2, [*first.prompt_token_ids, 1, 2])
        bench.waiting.push(request)
        composer = bench.composer()
        assert composer.admit(request) == 2
        assert bench.running == [first, request]
        assert composer.admitted == [request]
        assert len(bench.waiting) == 0
        assert request.block_table[:2] == first.block_table

    def test_the_prefix_is_not_looked_for_when_that_is_off(self) -> None:
        bench = Bench(prefix_caching=False)
        first = bench.run(1, 8, 8)
        bench.cache.publish(first, 8)
        request = make_request(2, [*first.prompt_token_ids, 1, 2])
        bench.waiting.push(request)
        composer = bench.composer()
        assert composer.admit(request) == 10
        assert bench.cache.pool.num_shared == 0

    def test_need_stands_beside_what_was_promised(self) -> None:
        """8 blocks: 1 held, 3 promised to the half-computed prompt, 4 for others."""
        for prompt, fits in ((16, True), (17, False)):
            bench = Bench(prefix_caching=False)
            bench.run(1, 4, 16)
            request = bench.wait(2, prompt)
            composer = bench.composer()
            assert bool(composer.admit(request)) is fits
            if not fits:
                assert composer.obstacle(request) == (
                    "no blocks: it needs 5, 4 of 8 are free for it"
                )

    @pytest.mark.parametrize(
        ("prompt", "fits"), [(12, True), (13, False)], ids=["above", "below the watermark"]
    )
    def test_the_watermark_stays_free(self, prompt: int, fits: bool) -> None:
        """8 blocks: 2 held, 1 promised for the decode's next token, 2 below the watermark."""
        bench = Bench(watermark=0.25)
        bench.run(1, 8, 8)
        assert bool(bench.composer().admit(bench.wait(2, prompt))) is fits

    def test_nothing_after_a_preemption(self) -> None:
        bench = Bench(num_blocks=5)
        bench.run(1, 8, 8)
        victim = bench.run(2, 8, 8)
        small = bench.wait(3, 1, priority=5)
        composer = bench.composer()
        composer.preempt(victim)
        assert composer.admit(small) == 0
        assert composer.obstacle(small) == "the pool just ran out of blocks"

    def test_obstacles_in_order(self) -> None:
        bench = Bench(max_num_seqs=1, max_num_batched_tokens=4, paused=True, draining=True)
        request = bench.wait(1, 3)
        assert bench.composer().obstacle(request) == "paused"
        bench.knobs = Knobs(draining=True)
        assert bench.composer().obstacle(request) == "draining: nothing new is admitted"
        bench.knobs = Knobs(max_num_seqs=1, max_num_batched_tokens=4)
        assert bench.composer().obstacle(request) == ""
        request.num_in_flight = 1
        assert bench.composer().obstacle(request) == "its last step is still running"
        request.num_in_flight = 0
        running = bench.run(2, 0, 4)
        assert bench.composer().obstacle(request) == "no slot: 1 of 1 sequences run"
        bench.knobs = Knobs(max_num_seqs=2, max_num_batched_tokens=4)
        composer = bench.composer()
        composer.schedule(running)
        assert composer.obstacle(request) == "no budget: the step's 4 tokens are given"
