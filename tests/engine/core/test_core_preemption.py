"""Preemption: who goes, where it waits, and how it goes on."""

from __future__ import annotations

import pytest

from engine.api.lifecycle import FinishReason, RequestState
from engine.api.waiting import in_words
from engine.batch.plan import StepPlan
from tests.support.harness import CoreHarness
from tests.support.scripted_runner import reference

PROMPT = list(range(100, 108))


def seqs(plan: StepPlan) -> list[int]:
    return [row.seq for row in plan.rows]


class TestPreemption:
    """The victim goes to the head of its priority, and the step that took its blocks is fair."""

    @pytest.mark.parametrize("depth", [1, 2])
    def test_the_victim_waits_at_the_head(self, depth: int) -> None:
        engine = CoreHarness(num_blocks=6, max_num_seqs=2, depth=depth, prefix_caching=False)
        engine.submit("a", list(range(10)), 14)
        engine.submit("b", list(range(100, 110)), 6)
        engine.submit("c", list(range(200, 204)), 2)
        while not engine.snapshot().totals.preemptions:
            engine.step()
        views = {view.request_id: view for view in engine.snapshot().requests}
        assert views["b"].state is RequestState.PREEMPTED
        waiting = [v.request_id for v in engine.snapshot().requests if v.wait]
        assert waiting == ["b", "c"]
        engine.finish()
        order = sorted(engine.ends, key=lambda name: engine.ends[name].timings.e2e or 0)
        assert order[0] == "a"

    def test_no_admission_in_a_step_that_preempted(self) -> None:
        """Slots and blocks for the small one are there, but not at the victim's cost."""
        engine = CoreHarness(num_blocks=8, prefix_caching=False)
        engine.submit("a", list(range(12)), 20)
        engine.submit("b", list(range(100, 112)), 20)
        engine.step()
        while engine.pool.num_available:
            engine.step()
        engine.submit("late", [7], 1)
        while not engine.records[-1].preempted:
            engine.step()
        assert engine.records[-1].preempted == ("b",)
        assert engine.records[-1].preempted_for == ("a",)
        assert engine.records[-1].admitted == ()
        assert in_words(engine.records[-1].head_wait) == "the pool just ran out of blocks"
        engine.finish()

    @pytest.mark.parametrize(("priority", "victim"), [(0, "b"), (1, "a")])
    def test_the_lowest_priority_goes_then_the_latest(self, priority: int, victim: str) -> None:
        engine = CoreHarness(num_blocks=8, prefix_caching=False)
        engine.submit("a", list(range(12)), 20)
        engine.submit("b", list(range(100, 112)), 20, priority=priority)
        engine.step()
        while not engine.records[-1].preempted:
            engine.step()
        assert engine.records[-1].preempted == (victim,)
        engine.finish()
        assert engine.snapshot().totals.preemptions >= 1

    def test_the_victim_keeps_its_priority(self) -> None:
        engine = CoreHarness(num_blocks=6, prefix_caching=False)
        engine.submit("a", list(range(10)), 14, priority=2)
        engine.submit("b", list(range(100, 110)), 6, priority=1)
        engine.step()
        engine.submit("low", [1, 2], 2)
        engine.submit("high", [1, 2], 2, priority=3)
        engine.core.change_knobs({"max_num_seqs": 2}, "test")
        while not engine.snapshot().totals.preemptions:
            engine.step()
        waiting = [v.request_id for v in engine.snapshot().requests if v.wait]
        assert waiting == ["high", "b", "low"]
        engine.finish()

    def test_a_planned_victim_is_not_in_the_plan(self) -> None:
        engine = CoreHarness(num_blocks=7, prefix_caching=False)
        engine.submit("low", list(range(9)), 12)
        engine.submit("high", list(range(100, 112)), 8, priority=1)
        engine.step()  # 3 + 3 blocks, 1 free
        engine.step()  # high needs a 4th for its 13th token
        assert engine.pool.num_available == 0
        for _ in range(3):
            engine.step()
        # low, planned first, has room for its 12th token; high needs a block for its 17th.
        assert engine.records[-1].preempted == ("low",)
        assert seqs(engine.runner.plans[-1]) == [2]
        assert engine.records[-1].decode_tokens == 1
        engine.finish()

    @pytest.mark.parametrize("watermark", [0.0, 0.25, 0.5])
    def test_the_watermark_is_kept_at_admission(self, watermark: float) -> None:
        engine = CoreHarness(num_blocks=16, watermark=watermark, prefix_caching=False)
        for i in range(8):
            engine.submit(f"r{i}", list(range(8)), 1)
        engine.step()
        kept = int(16 * watermark)
        admitted = len(engine.runner.plans[0].new)
        assert admitted == (16 - kept) // 2
        engine.finish()

    def test_the_watermark_does_not_keep_out_the_first(self) -> None:
        engine = CoreHarness(num_blocks=16, max_model_len=64, watermark=0.5)
        engine.submit("big", list(range(60)), 4)
        engine.finish()
        assert engine.ends["big"].reason is FinishReason.LENGTH

    def test_a_lone_sequence_without_blocks_ends_with_an_error(self) -> None:
        """Admission rules it out; were it wrong, the sequence must not preempt itself for ever."""
        engine = CoreHarness(num_blocks=3, max_model_len=12)
        engine.submit("a", list(range(6)), None)
        engine.request("a").max_output_tokens = 50
        engine.submit("b", list(range(50, 56)), 2)  # waits for the second of its blocks
        engine.run()
        error = engine.ends["a"].error
        assert error is not None
        assert error.type == "engine_error"
        assert "3 blocks" in error.message
        assert engine.ends["b"].reason is FinishReason.LENGTH
        assert engine.pool.num_used == 0


class TestResume:
    """A resumed sequence recomputes what it has, and goes on as if nothing had happened."""

    @pytest.mark.parametrize("depth", [1, 2])
    @pytest.mark.parametrize("prefix_caching", [False, True])
    def test_nothing_is_emitted_or_counted_twice(self, depth: int, prefix_caching: bool) -> None:
        engine = CoreHarness(num_blocks=8, depth=depth, prefix_caching=prefix_caching)
        engine.submit("warm", list(range(100, 108)), 1)
        engine.finish()
        engine.submit("a", list(range(12)), 16)
        engine.submit("b", list(range(100, 112)), 16, temperature=1.0, seed=3)
        engine.finish()
        assert engine.snapshot().totals.preemptions >= 1
        assert engine.tokens["b"] == reference(list(range(100, 112)), 16, seed=3)
        assert engine.ends["b"].usage.cached_tokens == (8 if prefix_caching else 0)
        resumed = [(plan, new) for plan in engine.runner.plans for new in plan.new if new.seq == 3][
            1:
        ]
        assert resumed
        for plan, new in resumed:
            outputs = len(new.token_ids) - new.num_prompt_tokens
            assert new.num_prompt_tokens == 12
            assert list(new.token_ids[12:]) == engine.tokens["b"][:outputs]
            assert outputs > 0
            assert new.seed == 3
            record = engine.records[plan.step - 1]
            assert (record.prefix_queried_tokens, record.prefix_hit_tokens) == (0, 0)
        totals = engine.snapshot().totals
        assert totals.prefix_queried_tokens == totals.prompt_tokens == 8 + 12 + 12
        assert totals.output_tokens == 1 + 16 + 16

    @pytest.mark.parametrize("depth", [1, 2])
    def test_recomputed_in_chunks_that_do_not_sample(self, depth: int) -> None:
        engine = CoreHarness(num_blocks=8, depth=depth, prefill_chunk=5, prefix_caching=False)
        engine.submit("a", list(range(12)), 16)
        engine.submit("b", list(range(100, 112)), 16)
        engine.finish()
        again = next(
            plan.step for plan in engine.runner.plans if 2 in [new.seq for new in plan.new][:1]
        )
        rows = [
            row
            for plan in engine.runner.plans
            if plan.step >= again
            for row in plan.rows
            if row.seq == 2
        ]
        chunks = [row for row in rows if row.prefill]
        assert len(chunks) >= 3
        assert [row.samples for row in chunks[:2]] == [False, False]

    def test_preempted_while_its_token_is_in_flight(self) -> None:
        """Depth 2: the token arrives while the request waits, and is its own."""
        engine = CoreHarness(num_blocks=64, depth=2)
        engine.submit("a", PROMPT, 6)
        engine.step()
        request = engine.request("a")
        assert request.num_in_flight == 1
        engine.preempt(request.request_id)
        assert request.state is RequestState.PREEMPTED
        engine.core._plan()
        assert in_words(engine.core.head_wait) == "its last step is still running"
        before = len(engine.tokens["a"])
        engine.step()
        assert len(engine.tokens["a"]) == before + 1
        engine.finish()
        assert len(engine.tokens["a"]) == 6
