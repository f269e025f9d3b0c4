"""Aborts: one way to end, and the blocks that a step in flight still reads."""

from __future__ import annotations

import pytest

from engine.api.lifecycle import FinishReason
from engine.api.waiting import in_words
from engine.batch.plan import StepPlan
from tests.support.harness import CoreHarness


def seqs(plan: StepPlan) -> list[int]:
    return [row.seq for row in plan.rows]


class TestAbort:
    """One way to end, from anywhere, once."""

    @pytest.mark.parametrize("depth", [1, 2])
    @pytest.mark.parametrize("steps", range(9))
    def test_at_any_moment(self, depth: int, steps: int) -> None:
        engine = CoreHarness(depth=depth, num_blocks=8, max_num_batched_tokens=8)
        engine.submit("a", list(range(12)), 8)
        engine.submit("b", list(range(100, 110)), 8)
        for _ in range(steps):
            engine.step()
        for _ in range(2):
            engine.core.abort("b")
            engine.core.check()
        engine.core.abort("nobody")
        assert not engine.core.idle
        engine.step()
        assert engine.ends["b"].reason is FinishReason.ABORT
        engine.core.abort("b")
        engine.finish()
        assert engine.ends["b"].reason is FinishReason.ABORT
        assert engine.ends["a"].reason is FinishReason.LENGTH
        assert engine.snapshot().totals.aborted == 1

    def test_blocks_are_let_go_as_at_the_end(self) -> None:
        """Published blocks stay findable, and the tail is evicted first."""
        states = []
        for abort in (False, True):
            engine = CoreHarness(num_blocks=8)
            engine.submit("a", list(range(10)), 20 if abort else 3)
            for _ in range(3):
                engine.step()
            engine.core.abort("a")
            engine.finish()
            states.append((list(engine.pool._cached), engine.pool._free))
        assert engine.ends["a"].reason is FinishReason.ABORT
        assert states[0] == states[1]
        assert len(states[0][0]) == 3


class TestBlocksInFlight:
    """Blocks freed under a step in flight wait for that step."""

    def test_they_are_not_given_to_the_next_plan(self) -> None:
        engine = CoreHarness(depth=2, num_blocks=4, max_model_len=16, prefix_caching=False)
        engine.submit("a", list(range(12)), 4)
        engine.step()  # step 1 is in, step 2 in flight; a holds all 4 blocks
        assert len(engine.core._in_flight) == 1
        engine.core.abort("a")
        assert engine.pool.num_used == 4
        engine.submit("b", list(range(100, 112)), 4)
        assert engine.core._plan() is False
        assert in_words(engine.core.head_wait) == "no blocks: it needs 3, 0 of 4 are free for it"
        engine.step()
        assert engine.pool.num_used == 0
        assert not engine.core.idle
        engine.step()
        assert seqs(engine.runner.plans[-1]) == [2]
        engine.finish()

    def test_preempting_once_is_enough(self) -> None:
        """While blocks are on their way back, nobody else loses any."""
        engine = CoreHarness(depth=2, num_blocks=9, prefix_caching=False)
        for i, name in enumerate("abc"):
            engine.submit(name, list(range(100 * i, 100 * i + 11)), 10)
        while not engine.snapshot().totals.preemptions:
            engine.step()
        assert engine.snapshot().totals.preemptions == 1
        engine.finish()
