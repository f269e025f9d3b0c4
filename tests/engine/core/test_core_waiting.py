"""Who waits, for what, and what is said of it."""

from __future__ import annotations

import pytest

from engine.api.waiting import in_words
from tests.support.harness import CoreHarness

PROMPT = list(range(100, 108))


class TestTwoHalfPrompts:
    """Two prompts that do not fit together must not each hold half of the pool."""

    @pytest.mark.parametrize("depth", [1, 2])
    def test_the_second_waits_for_the_whole_of_its_need(self, depth: int) -> None:
        engine = CoreHarness(num_blocks=8, depth=depth, prefill_chunk=4, prefix_caching=False)
        engine.submit("a", list(range(20)), 4)
        engine.submit("b", list(range(100, 120)), 4)
        engine.step()
        assert all(new.seq == 1 for plan in engine.runner.plans for new in plan.new)
        assert engine.pool.num_available >= 5  # enough for b's chunk, and for b alone
        assert in_words(engine.snapshot().head_wait).startswith("no blocks: it needs 5,")
        engine.finish()
        assert engine.snapshot().totals.preemptions == 0

    def test_promised_blocks_count_once_given(self) -> None:
        """The blocks of a half-computed prompt are no longer promised."""
        engine = CoreHarness(num_blocks=9, prefill_chunk=4, prefix_caching=False)
        engine.submit("a", list(range(16)), 1)
        engine.submit("b", list(range(100, 120)), 1)
        engine.step()
        assert [new.seq for new in engine.runner.plans[0].new] == [1, 2]
        engine.finish()


class TestTheReason:
    """Who waits says why."""

    def reasons(self, engine: CoreHarness) -> dict[str, str]:
        views = engine.snapshot().requests
        return {view.request_id: in_words(view.wait) for view in views if view.wait}

    def test_before_the_first_step(self) -> None:
        engine = CoreHarness()
        engine.submit("a", PROMPT)
        engine.submit("b", PROMPT)
        assert self.reasons(engine) == {"a": "it is next", "b": "behind 1"}

    def test_no_slot(self) -> None:
        engine = CoreHarness(max_num_seqs=1)
        for name in "abc":
            engine.submit(name, PROMPT, 8)
        engine.step()
        reason = "no slot: 1 of 1 are taken"
        assert self.reasons(engine) == {
            "b": reason,
            "c": f"behind 1: {reason}",
        }

    def test_no_blocks(self) -> None:
        engine = CoreHarness(num_blocks=4, max_model_len=16)
        engine.submit("a", list(range(9)), 7)
        engine.submit("b", list(range(100, 109)), 2)
        engine.step()
        assert self.reasons(engine) == {"b": "no blocks: it needs 3, 1 of 4 are free for it"}

    def test_no_budget(self) -> None:
        engine = CoreHarness(max_num_batched_tokens=8)
        engine.submit("a", list(range(16)), 2)
        engine.submit("b", PROMPT, 2)
        engine.step()
        assert self.reasons(engine) == {"b": "no budget: the step's 8 tokens are used up"}

    @pytest.mark.parametrize(
        ("knob", "reason"),
        [("paused", "paused"), ("draining", "draining: nothing new is admitted")],
    )
    def test_halted(self, knob: str, reason: str) -> None:
        engine = CoreHarness()
        engine.core.change_knobs({knob: True}, "test")
        engine.submit("a", PROMPT, 2)
        engine.run()
        assert self.reasons(engine) == {"a": reason}
        assert engine.runner.plans == []
        engine.core.change_knobs({knob: False}, "test")
        engine.finish()

    def test_many_that_wait_are_counted_beyond_those_shown(self) -> None:
        engine = CoreHarness(max_num_seqs=1)
        for i in range(300):
            engine.submit(f"r{i}", PROMPT, 2)
        engine.step()
        snapshot = engine.snapshot()
        assert snapshot.num_waiting == 299
        shown = [view for view in snapshot.requests if view.wait]
        assert [view.ordinal for view in shown] == list(range(2, 202))
