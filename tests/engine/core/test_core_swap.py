"""Preemption by swapping: who keeps what in host memory, and how it goes on.

`ScriptedRunner` copies the blocks, and holds each sequence's context against its tokens.
"""

from __future__ import annotations

import pytest

from engine.api.lifecycle import FinishReason, RequestState
from engine.api.telemetry import StepRecord
from engine.batch.plan import StepPlan
from engine.scheduling.policies import POLICIES
from tests.support.harness import CoreHarness

A, B = list(range(12)), list(range(100, 112))
both_depths = pytest.mark.parametrize("depth", [1, 2])


def two_of_eight(**options: object) -> CoreHarness:
    """Two chats of 12 tokens that want 16 more each: 14 blocks of 4, where the pool has 8."""
    options = {"num_blocks": 8, "num_host_blocks": 8, "prefix_caching": False} | options
    engine = CoreHarness(**({"preemption": "swap"} | options))  # type: ignore[arg-type]
    engine.submit("a", A, 16)
    engine.submit("b", B, 16)
    return engine


def until_preempted(engine: CoreHarness, count: int = 1) -> StepRecord:
    """Step until so many preemptions have been recorded; returns the last one's record."""
    while engine.snapshot().totals.preemptions < count:
        engine.step()
    return next(record for record in reversed(engine.records) if record.preempted)


def host_used(engine: CoreHarness) -> int:
    return engine.scheduler.cache.host.num_used


def swaps(engine: CoreHarness) -> list[StepPlan]:
    return [plan for plan in engine.runner.plans if plan.swaps_out or plan.swaps_in]


class TestSwap:
    @both_depths
    def test_a_victim_goes_on_where_it_was(self, depth: int) -> None:
        engine = two_of_eight(depth=depth)
        record = until_preempted(engine)
        assert record.preempted == record.swapped == ("b",)
        view = next(v for v in engine.snapshot().requests if v.request_id == "b")
        assert view.state is RequestState.PREEMPTED
        assert view.blocks == 0
        assert view.host_blocks == record.swapped_out_blocks == -(-view.computed_tokens // 4)
        engine.finish()
        out, back = swaps(engine)
        (row,) = (row for row in back.rows if row.seq == 2)
        assert (row.start, row.count, row.prefill) == (view.computed_tokens, 1, False)
        assert [host for _block, host in out.swaps_out] == [host for host, _ in back.swaps_in]
        assert engine.snapshot().totals.prefill_tokens == 12 + 12  # nothing is computed again
        restored = next(record for record in engine.records if record.restored)
        assert restored.restored == restored.admitted == ("b",)
        assert restored.swapped_in_blocks == record.swapped_out_blocks

    def test_recompute_copies_nothing(self) -> None:
        engine = two_of_eight(preemption="recompute")
        engine.finish()
        totals = engine.snapshot().totals
        assert (totals.preemptions > 0, totals.swaps, swaps(engine)) == (True, 0, [])
        assert totals.prefill_tokens > 24

    def test_blocks_leave_before_they_are_given_away(self) -> None:
        """The plan that takes a victim's blocks may already write to them."""
        engine = two_of_eight()
        until_preempted(engine)
        plan = next(plan for plan in engine.runner.plans if plan.swaps_out)
        given = {block for row in plan.rows for block in row.new_blocks}
        assert given & {block for block, _host in plan.swaps_out}
        engine.finish()

    @both_depths
    def test_half_a_prompt_is_kept_too(self, depth: int) -> None:
        engine = CoreHarness(
            num_blocks=8,
            num_host_blocks=8,
            depth=depth,
            preemption="swap",
            prefill_chunk=3,
            max_num_batched_tokens=8,
            prefix_caching=False,
        )
        engine.submit("a", list(range(8)), 22)
        for _ in range(13):
            engine.step()
        engine.submit("b", B, 3)
        until_preempted(engine)
        engine.finish()
        rows = [row for plan in engine.runner.plans for row in plan.rows if row.seq == 2]
        assert [row.start for row in rows] == sorted({row.start for row in rows})
        assert len(swaps(engine)) == 2

    def test_what_the_cache_still_has_is_not_copied_back(self) -> None:
        engine = two_of_eight(prefix_caching=True)
        record = until_preempted(engine)
        engine.core.abort("a")  # before much of b's is evicted
        engine.finish()
        (back,) = (plan for plan in engine.runner.plans if plan.swaps_in)
        assert 0 < len(back.swaps_in) < record.swapped_out_blocks
        (row,) = (row for row in back.rows if row.seq == 2)
        (new,) = back.new
        assert len(new.block_ids) == record.swapped_out_blocks
        assert row.count == 1

    def test_a_full_host_pool_recomputes_that_victim(self) -> None:
        engine = two_of_eight(num_host_blocks=2)
        record = until_preempted(engine)
        assert (record.preempted, record.swapped) == (("b",), ())
        state = next(s for s in engine.snapshot().knobs if s.name == "preemption")
        note = "2 blocks of host memory were free, the last victim needed 4"
        assert (state.requested, state.effective, state.note) == ("swap", "recompute", note)
        engine.finish()

    def test_without_host_memory_the_knob_says_so(self) -> None:
        engine = two_of_eight(num_host_blocks=0)
        state = next(s for s in engine.snapshot().knobs if s.name == "preemption")
        note = "no host memory is set aside for it (swap_memory)"
        assert (state.requested, state.effective, state.note) == ("swap", "recompute", note)
        engine.core.change_knobs({"preemption": "recompute"}, "test")
        state = next(s for s in engine.snapshot().knobs if s.name == "preemption")
        assert (state.effective, state.note) == ("recompute", "")
        engine.finish()

    @both_depths
    @pytest.mark.parametrize("steps", range(4))
    def test_aborted_while_swapped_out(self, depth: int, steps: int) -> None:
        engine = two_of_eight(depth=depth)
        until_preempted(engine)
        for _ in range(steps):
            engine.step()
        assert host_used(engine)
        engine.core.abort("b")
        assert host_used(engine) == 0
        engine.core.check()
        engine.submit("c", B, 4)
        engine.finish()
        assert engine.ends["b"].reason is FinishReason.ABORT
        assert all(new.seq != 2 for plan in swaps(engine) for new in plan.new)

    def test_aborted_before_its_copy_was_planned(self) -> None:
        """Host blocks that no plan fills any more may be given to another at once."""
        engine = two_of_eight(num_host_blocks=5, num_blocks=20)
        engine.step()
        scheduler, knobs = engine.scheduler, engine.core.ledger.knobs
        first, second = scheduler.running
        assert scheduler.books.swaps.swap_out(first, [second], knobs)
        scheduler.books.swaps.drop(first)
        assert scheduler.books.swaps.swap_out(second, [first], knobs)
        assert list(scheduler.books.swaps.out) == [second]
        scheduler.books.swaps.drop(second)
        engine.core.abort_all()
        engine.finish()

    @both_depths
    def test_a_fork_of_one_that_was_swapped_out(self, depth: int) -> None:
        """It can be forked again once its blocks are back."""
        engine = two_of_eight(depth=depth, num_blocks=9)
        until_preempted(engine)
        engine.submit("fork", [*B, 1], 3, fork_of="b")
        engine.finish()
        assert engine.ends["fork"].reason is FinishReason.LENGTH

    @both_depths
    def test_a_victim_that_shares_its_blocks_takes_copies_along(self, depth: int) -> None:
        engine = CoreHarness(
            num_blocks=9,
            num_host_blocks=9,
            depth=depth,
            preemption="swap",
            prefix_caching=False,
        )
        engine.submit("s0", B, 16)
        engine.submit("s1", B, 16, temperature=1.0, seed=4, fork_of="s0")
        record = until_preempted(engine)
        assert record.swapped == ("s1",)
        assert record.swapped_out_blocks >= 4
        engine.finish()
        assert engine.snapshot().totals.prefill_tokens <= 12 + 1

    @both_depths
    @pytest.mark.parametrize("policy", tuple(POLICIES))
    def test_under_every_policy(self, policy: str, depth: int) -> None:
        """Policies that reserve blocks or form groups resume swapped requests."""
        engine = two_of_eight(depth=depth, num_blocks=9, batch_window_ms=0.0)
        until_preempted(engine)
        engine.core.change_knobs({"policy": policy}, "test")
        engine.finish()
        assert engine.snapshot().totals.prefill_tokens == 12 + 12


def gathered(depth: int = 1) -> CoreHarness:
    """A static batch takes in one that was swapped out, and computes another's prompt first."""
    engine = two_of_eight(num_blocks=9, max_num_batched_tokens=8, depth=depth)
    until_preempted(engine)
    engine.core.change_knobs({"policy": "static", "static_batch_size": 3}, "test")
    engine.submit("c", list(range(50, 56)), 2)
    return engine


class TestWithoutRow:
    """Blocks that come back before the step that computes with them."""

    def test_it_goes_on_in_a_later_step(self) -> None:
        engine = gathered()
        while not any(plan.swaps_in for plan in engine.runner.plans):
            engine.step()
        plan = engine.runner.plans[-1]
        assert plan.swaps_in
        assert 2 not in {row.seq for row in plan.rows}
        engine.finish()

    def test_if_that_step_fails_they_are_not_there(self) -> None:
        dry = gathered()
        dry.finish()
        engine = gathered()
        engine.runner.fail_steps = {swaps(dry)[-1].step}
        engine.finish()
        assert engine.ends["c"].reason is FinishReason.ERROR
        assert engine.ends["b"].reason is FinishReason.LENGTH

    def test_they_are_not_given_away_while_that_step_runs(self) -> None:
        engine = gathered(depth=2)
        while not any(plan.swaps_in for plan in engine.runner.plans):
            engine.core._plan()
            if not swaps(engine)[-1].swaps_in:
                engine.core._commit()
        assert [bool(f.plan.swaps_in) for f in engine.core._in_flight] == [True]
        engine.core.abort_all()
        assert engine.scheduler.books.reclaim.num_pending == 7 + 2  # both of the batch
        engine.core.change_knobs({"policy": "stall_free"}, "test")
        engine.submit("d", list(range(60, 90)), 3)
        engine.finish()


class TestFailure:
    @both_depths
    @pytest.mark.parametrize("early", [False, True])
    @pytest.mark.parametrize("late", range(3))
    def test_a_copy_of_a_step_that_fails_is_not_relied_on(
        self, late: int, early: bool, depth: int
    ) -> None:
        """The step that copies it out, those before and after, and the one that copies it back."""
        dry = two_of_eight(depth=depth)
        dry.finish()
        for plan in swaps(dry):
            engine = two_of_eight(depth=depth)
            failing = engine.runner.fail_starts if early else engine.runner.fail_steps
            failing.add(plan.step + late - 1)
            engine.finish()
            assert any(record.error for record in engine.records)

    def test_what_a_failed_step_was_to_copy_is_recomputed(self) -> None:
        dry = two_of_eight()
        until_preempted(dry)
        engine = two_of_eight()
        engine.runner.fail_steps = {swaps(dry)[0].step}
        while "a" not in engine.ends:  # it was the only one of the step
            engine.step()
        assert engine.ends["a"].reason is FinishReason.ERROR
        request = engine.request("b")
        assert (request.host_blocks, request.num_computed_tokens) == ([], 0)
        engine.finish()
        assert not any(plan.swaps_in for plan in engine.runner.plans)


class TestAuto:
    def test_the_cheaper_way_is_taken_and_told(self) -> None:
        """Steps of the scripted runner take the same time whatever is in them, so that more tokens
        cost nothing, and copies do."""
        engine = two_of_eight(preemption="auto")
        record = until_preempted(engine)
        assert (record.preempted, record.swapped) == (("b",), ())
        state = next(s for s in engine.snapshot().knobs if s.name == "preemption")
        assert (state.requested, state.effective) == ("auto", "recompute")
        engine.finish()
