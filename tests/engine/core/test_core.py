"""The core's own behaviour: idleness, deadlines, refusals, failing steps."""

from __future__ import annotations

import gc

import pytest

from engine.api.client import Submission
from engine.api.errors import DeviceLostError
from engine.api.knobs import ORDER_NAMES
from engine.api.lifecycle import FinishReason
from engine.api.sampling import SamplingParams
from engine.api.waiting import in_words
from engine.batch.plan import End, Request
from engine.core.admission import MAX_DEADLINE
from engine.core.failures import MOST_FAILURES
from tests.support.harness import CoreHarness
from tests.support.scripted_runner import reference

PROMPT = list(range(100, 108))


class TestIdle:
    def test_from_the_start_and_after_the_last_end(self) -> None:
        engine = CoreHarness()
        assert engine.core.idle
        engine.submit("a", PROMPT, 2)
        assert not engine.core.idle
        engine.finish()
        assert engine.core.idle

    def test_not_while_a_refusal_is_undelivered(self) -> None:
        engine = CoreHarness()
        engine.submit("a", [], 2)
        assert not engine.core.idle
        engine.step()
        assert engine.ends["a"].reason is FinishReason.ERROR
        assert engine.core.idle

    @pytest.mark.parametrize("depth", [1, 2])
    def test_a_commit_may_make_room(self, depth: int) -> None:
        """At depth 2 nothing could be planned while the last step was in flight, and afterwards a
        request waits for what it left: the core must ask for another step by itself."""
        engine = CoreHarness(depth=depth, max_num_seqs=1)
        for name in "abc":
            engine.submit(name, PROMPT, 1)
        steps = 0
        while not engine.core.idle:
            engine.step()
            steps += 1
        assert set(engine.ends) == set("abc")
        assert steps <= 8


class TestPriorities:
    """Changed while the request lives; what it is for is in tests of queue and composer."""

    def test_one_that_waits_moves(self) -> None:
        engine = CoreHarness(max_num_seqs=1)
        for name in "abc":
            engine.submit(name, PROMPT, 1)
        engine.core.set_priority("c", 1)
        engine.core.set_priority("a", -1)
        engine.finish()
        assert [name for record in engine.records for name in record.admitted] == ["c", "b", "a"]

    def test_one_that_runs_keeps_its_slot_and_is_the_next_victim(self) -> None:
        """Three blocks each at most, five in all: one of the two has to give way, and waits behind
        what is worth more than it is now.
        """
        engine = CoreHarness(num_blocks=5, max_model_len=12)
        engine.submit("a", PROMPT, 4)
        engine.submit("b", PROMPT[::-1], 4)
        engine.step()
        engine.core.set_priority("a", -5)
        engine.submit("c", PROMPT[1:5], 4)
        assert len(engine.scheduler.running) == 2
        engine.finish()
        assert [name for record in engine.records for name in record.preempted] == ["a"]
        order = [name for record in engine.records for name in record.admitted]
        assert order == ["a", "b", "c", "a"]

    @pytest.mark.parametrize("order", ORDER_NAMES)
    def test_a_preempted_one_moves(self, order: str) -> None:
        engine = CoreHarness(num_blocks=5, max_model_len=12, order=order)
        engine.submit("a", PROMPT, 4)
        engine.submit("b", PROMPT[::-1], 4)
        engine.step()
        while not head(engine):
            engine.step()
        engine.submit("c", PROMPT[1:5], 4)
        assert head(engine) == ["b", "c"]
        engine.core.set_priority("b", -1)
        engine.core.check()
        assert head(engine) == (["c", "b"] if order == "priority" else ["b", "c"])
        engine.finish()


def head(engine: CoreHarness) -> list[str]:
    return [request.request_id for request in engine.scheduler.waiting.head(9)]


class TestDeadlines:
    def test_one_that_waits_too_long_ends(self) -> None:
        engine = CoreHarness(max_num_seqs=1)
        engine.submit("a", PROMPT, 50)
        engine.submit("b", PROMPT, 5, deadline=0.25)
        engine.submit("c", PROMPT, 5, deadline=0.1)
        assert engine.core.next_wake == engine.clock.now + 0.1
        engine.step()
        engine.clock.advance(0.1)
        engine.step()
        assert set(engine.ends) == {"c"}
        assert engine.core.next_wake is not None
        engine.clock.advance(0.2)
        engine.step()
        error = engine.ends["b"].error
        assert error is not None
        assert (error.type, error.param) == ("deadline_error", "deadline")
        assert error.message == "the deadline passed after 0.320 s in the queue"
        assert engine.core.next_wake is None

    def test_one_that_left_the_queue_in_time_goes_on(self) -> None:
        engine = CoreHarness()
        engine.submit("a", PROMPT, 20, deadline=0.05)
        engine.finish()
        assert engine.ends["a"].reason is FinishReason.LENGTH

    def test_a_preempted_one_did_leave_the_queue(self) -> None:
        engine = CoreHarness(num_blocks=6, prefix_caching=False)
        engine.submit("a", list(range(10)), 14)
        engine.submit("b", list(range(100, 110)), 6, deadline=0.05)
        engine.finish()
        assert engine.snapshot().totals.preemptions
        assert engine.ends["b"].reason is FinishReason.LENGTH

    def test_a_preempted_one_did_leave_the_queue_also_behind_another(self) -> None:
        """Its deadline was never looked at while it ran: one before it was still to come."""
        engine = CoreHarness(max_num_seqs=1)
        engine.submit("runs", PROMPT, 9, deadline=0.05, priority=1)
        engine.submit("waits", PROMPT, 9, deadline=0.04)
        engine.step()
        engine.core.change_knobs({"paused": True}, "test")
        engine.preempt("runs")
        engine.clock.advance(1.0)
        engine.step()
        assert set(engine.ends) == {"waits"}
        engine.core.change_knobs({"paused": False}, "test")
        engine.finish()

    def test_an_idle_core_says_when_it_wants_a_step(self) -> None:
        engine = CoreHarness(paused=True)
        engine.submit("a", PROMPT, 2, deadline=1.0)
        engine.run()
        assert engine.core.idle
        wake = engine.core.next_wake
        assert wake is not None
        engine.clock.now = wake
        engine.step()
        assert engine.ends["a"].reason is FinishReason.ERROR
        assert engine.core.next_wake is None

    def test_it_runs_from_the_arrival(self) -> None:
        engine = CoreHarness()
        engine.submit("a", PROMPT, 2, deadline=1.0, arrival=engine.clock.now - 1.0)
        engine.step()
        assert engine.ends["a"].reason is FinishReason.ERROR
        assert engine.runner.plans == []

    def test_the_longest_is_a_year(self) -> None:
        engine = CoreHarness()
        engine.submit("a", PROMPT, 2, deadline=MAX_DEADLINE)
        engine.submit("b", PROMPT, 2, deadline=MAX_DEADLINE + 1)
        engine.finish()
        assert engine.ends["a"].reason is FinishReason.LENGTH
        error = engine.ends["b"].error
        assert error is not None
        assert error.message == (
            "deadline is 31536001; it must be a number of seconds above 0 and at most 31536000"
        )

    def test_requests_that_ended_are_not_kept_for_their_deadline(self) -> None:
        engine = CoreHarness()
        for i in range(200):
            engine.submit(f"r{i}", [i], 1, deadline=1e6)
            engine.finish()
        gc.collect()
        kept = [o for o in gc.get_objects() if isinstance(o, Request) and o.deadline is not None]
        assert len(kept) < 10


class TestRefusals:
    def test_the_queue_limit(self) -> None:
        engine = CoreHarness(queue_limit=2, max_num_seqs=1)
        for name in "abc":
            engine.submit(name, PROMPT, 3)
        engine.finish()
        error = engine.ends["c"].error
        assert error is not None
        assert (error.type, error.param) == ("overloaded_error", "queue_limit")
        assert error.message == "the queue is full, queue_limit is 2; try again later"
        assert engine.ends["c"].usage.prompt_tokens == len(PROMPT)
        assert engine.ends["b"].reason is FinishReason.LENGTH

    def test_those_that_run_do_not_count(self) -> None:
        engine = CoreHarness(queue_limit=2, max_num_seqs=2)
        for i in range(3):
            engine.submit(f"r{2 * i}", PROMPT, 30)
            engine.submit(f"r{2 * i + 1}", PROMPT, 30)
            engine.step()
        assert set(engine.ends) == {"r4", "r5"}

    def test_an_id_in_use(self) -> None:
        engine = CoreHarness()
        engine.submit("a", PROMPT, 3)
        engine.step()
        engine.core.add_request(Submission(request_id="a"), PROMPT, SamplingParams())
        outputs = engine.core.step()
        refusal = next(o.end for o in outputs if o.end is not None)
        assert isinstance(refusal, End)
        assert refusal.error is not None
        assert refusal.error.param == "request_id"
        assert refusal.error.message == (
            "request_id is 'a'; a request with this id has not ended yet"
        )
        assert engine.core.num_unfinished == 1

    def test_an_id_may_be_used_again_after_its_end(self) -> None:
        engine = CoreHarness()
        engine.submit("a", PROMPT, 3)
        engine.finish()
        del engine.ends["a"], engine.tokens["a"]
        engine.submit("a", PROMPT, 3)
        engine.finish()
        assert engine.ends["a"].usage.cached_tokens == 4


class TestFailingSteps:
    """The prompts of a failed step end, its decodes are recomputed; every failure ends somebody."""

    @pytest.mark.parametrize("depth", [1, 2])
    @pytest.mark.parametrize("early", [False, True])
    def test_prompts_are_blamed_and_decodes_spared(self, depth: int, early: bool) -> None:
        engine = CoreHarness(depth=depth, max_num_batched_tokens=64)
        engine.submit("a", PROMPT, 20)
        engine.submit("b", list(range(200, 208)), 20, temperature=1.0, seed=4)
        engine.step()
        step = len(engine.runner.plans) + 1
        (engine.runner.fail_starts if early else engine.runner.fail_steps).add(step)
        engine.submit("prompt", [1, 2, 3], 5)
        engine.finish()
        error = engine.ends["prompt"].error
        assert error is not None
        assert error.type == "engine_error"
        assert error.message == (
            "the step that computed this request failed: MemoryError: scripted failure"
        )
        assert engine.tokens["a"] == reference(PROMPT, 20)
        assert engine.tokens["b"] == reference(list(range(200, 208)), 20, seed=4)
        assert engine.snapshot().totals.failed == 1

    @pytest.mark.parametrize("depth", [1, 2])
    @pytest.mark.parametrize("early", [False, True])
    def test_without_prompts_all_of_the_step_end(self, depth: int, early: bool) -> None:
        engine = CoreHarness(depth=depth)
        engine.submit("a", PROMPT, 20)
        engine.submit("b", PROMPT, 20)
        (engine.runner.fail_starts if early else engine.runner.fail_steps).add(4)
        engine.finish()
        assert {end.reason for end in engine.ends.values()} == {FinishReason.ERROR}
        # What was computed before the failure came out.
        assert len(engine.tokens["a"]) == len(engine.tokens["b"]) == 3

    def test_the_step_before_a_refused_one_counts(self) -> None:
        """Depth 2: step 2 is in flight and sound when the runner refuses step 3."""
        engine = CoreHarness(depth=2)
        engine.runner.fail_starts = {3}
        engine.submit("a", PROMPT, 20)
        engine.step()
        assert len(engine.tokens["a"]) == 1
        engine.step()
        assert len(engine.tokens["a"]) == 2
        assert engine.ends["a"].reason is FinishReason.ERROR
        assert [bool(record.error) for record in engine.records] == [False, False, True]

    @pytest.mark.parametrize("depth", [1, 2])
    @pytest.mark.parametrize("early", [False, True])
    def test_a_broken_device_cannot_loop(self, depth: int, early: bool) -> None:
        engine = CoreHarness(depth=depth)
        (engine.runner.fail_starts if early else engine.runner.fail_steps).update(range(3, 500))
        for i in range(12):
            engine.submit(f"r{i}", [i, *PROMPT], 20)
        engine.run(max_steps=40)
        assert len(engine.ends) == 12
        engine.finish()

    @pytest.mark.parametrize("depth", [1, 2])
    @pytest.mark.parametrize("early", [False, True])
    def test_steps_that_all_fail_are_the_device_s_fault(self, depth: int, early: bool) -> None:
        """One at a time: each step fails, and its request with it."""
        engine = CoreHarness(depth=depth, max_num_seqs=1)
        (engine.runner.fail_starts if early else engine.runner.fail_steps).update(range(1, 500))
        for i in range(MOST_FAILURES + 1):
            engine.submit(f"r{i}", [i, *PROMPT], 20)
        with pytest.raises(
            DeviceLostError, match="8 steps failed one after the other, the last with MemoryError"
        ):
            engine.run()
        assert engine.core.num_unfinished == 2

    @pytest.mark.parametrize("depth", [1, 2])
    def test_a_step_that_works_between_them_clears_the_device(self, depth: int) -> None:
        engine = CoreHarness(depth=depth, max_num_seqs=1)
        for i in range(3 * MOST_FAILURES):
            engine.submit(f"r{i}", [i, *PROMPT], 1 if i % 4 else 20)
        engine.runner.fail_starts = {step for step in range(1, 500) if step % 5}
        engine.finish()
        failed = [end for end in engine.ends.values() if end.reason is FinishReason.ERROR]
        assert len(failed) > MOST_FAILURES

    @pytest.mark.parametrize("early", [False, True])
    def test_a_device_that_is_lost_fails_at_once(self, early: bool) -> None:
        engine = CoreHarness()
        engine.runner.failure = DeviceLostError("cuda:0 computes nothing any more")
        (engine.runner.fail_starts if early else engine.runner.fail_steps).add(2)
        engine.submit("a", PROMPT, 20)
        engine.step()
        with pytest.raises(DeviceLostError, match="cuda:0 computes nothing any more"):
            engine.step()

    @pytest.mark.parametrize("depth", [1, 2])
    def test_logits_that_are_not_finite_end_one_request(self, depth: int) -> None:
        engine = CoreHarness(depth=depth)
        for i in range(3):
            engine.submit(f"r{i}", [i, *PROMPT], 9)
        engine.step()
        engine.runner.nan_seqs = {2}
        engine.finish()
        error = engine.ends["r1"].error
        assert error is not None
        assert error.message == "the model gave logits that are not finite"
        for i in (0, 2):
            assert engine.tokens[f"r{i}"] == reference([i, *PROMPT], 9)

    def test_what_is_not_finite_is_not_shared(self) -> None:
        engine = CoreHarness(prefix_caching=True)
        engine.runner.nan_seqs = {1}
        engine.submit("a", [*PROMPT, *PROMPT], 1)
        engine.run()
        engine.submit("b", [*PROMPT, *PROMPT], 1)
        engine.finish()
        assert engine.ends["a"].reason is FinishReason.ERROR
        assert engine.ends["b"].usage.cached_tokens == 0
        assert engine.ends["b"].reason is FinishReason.LENGTH

    def test_one_that_was_aborted_is_not_blamed(self) -> None:
        engine = CoreHarness(depth=2)
        engine.submit("a", PROMPT, 9)
        engine.submit("b", PROMPT, 9)
        engine.step()
        engine.runner.fail_steps = {2}
        engine.core.abort("a")
        engine.finish()
        assert engine.ends["a"].reason is FinishReason.ABORT
        assert engine.ends["b"].reason is FinishReason.ERROR


def test_abort_all() -> None:
    engine = CoreHarness(depth=2, max_num_seqs=2)
    for i in range(5):
        engine.submit(f"r{i}", [i, *PROMPT], 9)
    engine.step()
    engine.core.abort_all()
    engine.finish()
    assert {end.reason for end in engine.ends.values()} == {FinishReason.ABORT}
    assert len(engine.ends) == 5


def test_the_same_run_twice() -> None:
    """Deterministic under a given clock: the same plans, the same blocks."""

    def run() -> CoreHarness:
        engine = CoreHarness(depth=2, num_blocks=14, max_num_batched_tokens=16, max_num_seqs=6)
        engine.runner.fail_steps = {7, 21}
        for i in range(16):
            engine.submit(f"r{i}", [i % 3, *PROMPT, i], 10, priority=i % 2, seed=i)
            engine.step()
        engine.finish()
        return engine

    one, two = run(), run()
    assert one.runner.plans == two.runner.plans
    assert one.records == two.records
    assert one.ends == two.ends


@pytest.mark.parametrize("order", ORDER_NAMES)
@pytest.mark.parametrize("depth", [1, 2])
def test_a_drain_ends_though_one_that_may_not_come_in_is_ahead(order: str, depth: int) -> None:
    engine = CoreHarness(num_blocks=8, order=order, depth=depth)
    for i in range(2):
        engine.submit(f"r{i}", range(100 * i, 100 * i + 8), 16)
    engine.step()
    while not len(engine.scheduler.waiting):
        engine.step()
    engine.submit("urgent", [1, 2], 2, priority=5)
    engine.core.change_knobs({"draining": True}, "me")
    engine.run()
    assert set(engine.ends) == {"r0", "r1"}
    assert in_words(engine.core.head_wait) == "draining: nothing new is admitted"
    engine.core.undo_knobs("me")
    engine.finish()
