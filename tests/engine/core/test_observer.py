"""The observer's timings, records, totals and snapshots of a core."""

from __future__ import annotations

import math

import pytest

from engine.api.block_map import Sharing
from engine.api.knobs import KNOB_SPECS
from engine.api.lifecycle import FinishReason, RequestState, Timings
from engine.api.origin import Origin
from engine.api.snapshot import RequestView
from engine.api.telemetry import Distribution, Ended, PhaseTimes
from engine.api.waiting import in_words
from engine.core.draft import STEADY_TOKENS
from engine.core.latencies import WINDOW
from engine.core.observer import MAX_ENDED_VIEWS
from tests.support.harness import CARD, SHAPE, CoreHarness, states_of

PROMPT = list(range(100, 106))


def slow_engine(**options: object) -> CoreHarness:
    """A step takes one second."""
    engine = CoreHarness(**options)  # type: ignore[arg-type]
    engine.runner.seconds_per_step = 1.0
    return engine


def view(engine: CoreHarness, name: str) -> RequestView:
    return next(v for v in engine.snapshot().requests if v.request_id == name)


class TestTimings:
    """TTFT, TPOT, ITL, queue, prefill, decode and end-to-end, as the field defines them."""

    def test_every_definition_once(self) -> None:
        engine = slow_engine(max_num_seqs=1)
        engine.submit("a", PROMPT, 4)
        engine.clock.advance(2.0)  # in the queue
        engine.step()  # first token at 3
        engine.step()  # 4
        engine.clock.advance(0.5)
        engine.step()  # 5.5
        engine.clock.advance(3.0)
        engine.step()  # 9.5
        timings = engine.ends["a"].timings
        assert timings.queue == 2.0
        assert timings.prefill == 1.0
        assert timings.ttft == 3.0
        assert timings.decode == 6.5
        assert timings.e2e == 9.5
        assert timings.tpot == (9.5 - 3.0) / 3
        latency = engine.snapshot().latency
        assert latency.window == WINDOW == 60.0
        assert latency.itl == Distribution.of([1.0, 1.5, 4.0])
        assert latency.ttft == Distribution.of([3.0])
        assert latency.tpot == Distribution.of([6.5 / 3])
        assert latency.queue == Distribution.of([2.0])
        assert latency.e2e == Distribution.of([9.5])

    def test_arrival_is_when_it_came_not_when_it_was_read(self) -> None:
        engine = slow_engine()
        engine.submit("a", PROMPT, 1, arrival=engine.clock.now - 5.0)
        engine.finish()
        assert engine.ends["a"].timings.queue == 5.0
        assert engine.ends["a"].timings.ttft == 6.0

    def test_chunks_belong_to_the_prefill(self) -> None:
        engine = slow_engine(prefill_chunk=2)
        engine.submit("a", PROMPT, 2)
        engine.finish()
        timings = engine.ends["a"].timings
        assert (timings.queue, timings.prefill, timings.decode) == (0.0, 3.0, 1.0)

    def test_one_token_has_no_tpot_and_no_gap(self) -> None:
        engine = slow_engine()
        engine.submit("a", PROMPT, 1)
        engine.finish()
        assert engine.ends["a"].timings.tpot is None
        assert view(engine, "a").itl_p99 is None
        latency = engine.snapshot().latency
        assert (latency.tpot.count, latency.itl.count, latency.ttft.count) == (0, 0, 1)

    def test_an_aborted_request_counts_only_what_it_had(self) -> None:
        engine = slow_engine(max_num_seqs=1)
        engine.submit("a", PROMPT, 9)
        engine.submit("b", PROMPT, 9)
        engine.step()
        engine.step()
        engine.clock.advance(1.0)
        engine.core.abort("a")
        engine.core.abort("b")
        engine.step()
        a, b = engine.ends["a"].timings, engine.ends["b"].timings
        assert (a.ttft, a.e2e, a.decode) == (1.0, 3.0, 1.0)
        assert (b.queue, b.prefill, b.ttft, b.decode, b.tpot, b.e2e) == (*[None] * 5, 3.0)
        latency = engine.snapshot().latency
        assert (latency.e2e.count, latency.tpot.count, latency.ttft.count) == (0, 0, 1)

    def test_the_tpot_of_what_runs_counts_as_it_is_so_far_once_it_is_steady(self) -> None:
        """With two or three tokens it is the mean of the prompts that stood between them."""
        engine = slow_engine(max_num_seqs=2)
        engine.submit("a", PROMPT, 3)
        engine.submit("b", PROMPT, 20)
        engine.step()
        engine.clock.advance(1.0)
        engine.step()
        assert engine.snapshot().latency.tpot.count == 0
        assert view(engine, "b").tpot == 2.0
        engine.step()  # a ends
        assert engine.snapshot().latency.tpot == Distribution.of([1.5])
        while view(engine, "b").output_tokens < STEADY_TOKENS:
            assert engine.snapshot().latency.tpot.count == 1
            engine.step()
        assert engine.snapshot().latency.tpot == Distribution.of([1.5, 8 / 7])
        engine.clock.advance(WINDOW)
        assert engine.snapshot().latency.tpot == Distribution.of([8 / 7])
        engine.core.abort("b")
        engine.step()
        assert engine.snapshot().latency.tpot.count == 0

    def test_a_refused_request_has_an_end_and_nothing_else(self) -> None:
        engine = slow_engine()
        engine.submit("a", [], 9, arrival=engine.clock.now - 1.0)
        engine.finish()
        timings = engine.ends["a"].timings
        assert (timings.queue, timings.ttft, timings.e2e) == (None, None, 1.0)

    def test_a_preemption_lengthens_a_gap_and_starts_no_second_queue(self) -> None:
        engine = slow_engine(num_blocks=6, prefix_caching=False)
        engine.submit("a", list(range(10)), 14)
        engine.submit("b", list(range(100, 110)), 6)
        engine.finish()
        timings = engine.ends["b"].timings
        assert timings.queue == 0.0
        assert timings.ttft == 1.0
        assert engine.snapshot().latency.queue.count == 2
        gap = view(engine, "b").itl_p99
        assert gap is not None
        assert gap > 5.0
        assert engine.snapshot().latency.itl.count == 13 + 5

    def test_old_samples_leave_the_window(self) -> None:
        engine = slow_engine()
        engine.submit("a", PROMPT, 3)  # tokens at 1, 2 and 3
        engine.finish()
        engine.clock.advance(WINDOW - 0.5)
        assert engine.snapshot().latency.itl.count == 1
        engine.clock.advance(2.0)
        latency = engine.snapshot().latency
        assert latency.itl.count == latency.e2e.count == 0
        assert math.isnan(latency.ttft.p99)


class TestRecords:
    def test_steps_that_are_planned_ahead_do_not_overlap(self) -> None:
        engine = slow_engine(depth=2)
        engine.submit("a", PROMPT, 9)
        engine.finish()
        records = list(engine.records)
        assert all(record.duration == 1.0 for record in records)
        assert sum(record.turn_start > record.start for record in records) == len(records) - 1
        assert [record.turn_start for record in records[1:]] == [
            record.end for record in records[:-1]
        ]

    def test_counts_of_a_mixed_step(self) -> None:
        engine = slow_engine(max_num_batched_tokens=16, max_num_seqs=3)
        engine.submit("warm", list(range(9)), 1)
        engine.finish()
        engine.submit("a", PROMPT, 9)
        engine.step()
        engine.submit("b", [*range(8), 50, 51, 52], 9)
        engine.submit("c", list(range(200, 230)), 9)
        engine.submit("d", [1], 1)
        start = engine.clock.now
        engine.step()
        record = engine.records[-1]
        assert (record.step, record.start, record.end) == (3, start, start + 1.0)
        assert record.duration == 1.0
        assert (record.decode_tokens, record.decode_rows) == (1, 1)
        assert (record.prefill_tokens, record.prefill_rows) == (3 + 12, 2)
        assert record.num_tokens == engine.runner.plans[-1].num_tokens == 16
        assert record.output_tokens == 2
        assert (record.budget, record.policy) == (16, "stall_free")
        assert record.model == CARD.name
        assert record.admitted == ("b", "c")
        assert (record.prefix_queried_tokens, record.prefix_hit_tokens) == (11 + 30, 8)
        assert (record.running, record.waiting) == (3, 1)
        assert in_words(record.head_wait) == "no slot: 3 of 3 are taken"
        assert record.times == PhaseTimes(0.0, 1.0, 0.0)
        assert record.cost == SHAPE.cost(engine.runner.plans[-1].rows)
        assert (record.preempted, record.finished, record.error) == ((), (), "")

    def test_who_ended_is_in_the_record_of_that_step(self) -> None:
        engine = slow_engine()
        engine.submit("a", PROMPT, 1)
        engine.submit("b", PROMPT, 3)
        engine.submit("c", PROMPT, 3)
        engine.step()
        (ended,) = engine.records[-1].finished
        timings = Timings(queue=0.0, prefill=1.0, decode=0.0, ttft=1.0, tpot=None, e2e=1.0)
        assert ended == Ended("a", 1, FinishReason.LENGTH, len(PROMPT), 0, timings)
        engine.core.abort("c")
        engine.step()
        (ended,) = engine.records[-1].finished
        assert ended[:3] == ("c", 1, FinishReason.ABORT)
        engine.step()
        (ended,) = engine.records[-1].finished
        timings = Timings(queue=0.0, prefill=1.0, decode=2.0, ttft=1.0, tpot=1.0, e2e=3.0)
        assert ended == Ended("b", 3, FinishReason.LENGTH, len(PROMPT), 0, timings)

    def test_tokens_of_the_dead_are_not_counted(self) -> None:
        """Depth 2: the aborted request had a token in flight."""
        engine = slow_engine(depth=2)
        engine.submit("a", PROMPT, 9)
        engine.submit("b", PROMPT, 9)
        engine.step()
        engine.core.abort("a")
        engine.step()
        assert engine.records[-1].output_tokens == 1
        engine.runner.nan_seqs = {2}
        engine.step()
        assert engine.records[-1].output_tokens == 0
        engine.finish()
        assert engine.snapshot().totals.output_tokens == 3

    @pytest.mark.parametrize("depth", [1, 2])
    @pytest.mark.parametrize("early", [False, True])
    def test_a_failed_step_leaves_a_record(self, depth: int, early: bool) -> None:
        """Records are numbered without gaps, so that a reader can ask for those after one."""
        engine = slow_engine(depth=depth)
        (engine.runner.fail_starts if early else engine.runner.fail_steps).add(3)
        engine.submit("a", PROMPT, 9)
        engine.finish()
        assert [record.step for record in engine.records] == list(
            range(1, len(engine.runner.plans) + 1)
        )
        failed = [record for record in engine.records if record.error]
        assert failed[0].step == 3
        assert failed[0].error == "MemoryError: scripted failure"
        (ended,) = failed[0].finished
        assert ended[:3] == ("a", 2, FinishReason.ERROR)
        assert (failed[0].num_tokens, failed[0].output_tokens) == (0, 0)
        assert (failed[0].cost.flops, failed[0].cost.bytes) == (0, 0)
        assert engine.snapshot().step == len(engine.records)


class TestSnapshot:
    def test_totals_add_up(self) -> None:
        engine = slow_engine(num_blocks=10, max_num_seqs=3, queue_limit=5)
        for i in range(8):
            engine.submit(f"r{i}", [*PROMPT, i], 12)
        engine.submit("empty", [], 1)
        engine.step()
        engine.core.abort("r0")
        engine.runner.nan_seqs = {2}
        engine.finish()
        totals = engine.snapshot().totals
        assert totals.requests == 9
        assert (totals.finished, totals.aborted, totals.failed, totals.refused) == (3, 1, 1, 4)
        assert totals.prompt_tokens == 5 * 7
        assert totals.output_tokens == sum(map(len, engine.tokens.values()))
        assert totals.prefill_tokens == sum(r.prefill_tokens for r in engine.records)
        assert totals.preemptions == sum(len(r.preempted) for r in engine.records) > 0
        assert totals.prefix_hit_tokens == sum(
            end.usage.cached_tokens for end in engine.ends.values()
        )

    def test_of_an_engine_that_did_nothing(self) -> None:
        engine = slow_engine()
        snapshot = engine.snapshot()
        assert (snapshot.time, snapshot.step) == (engine.clock.now, 0)
        assert (snapshot.requests, snapshot.num_running, snapshot.num_waiting) == ((), 0, 0)
        assert (snapshot.model, snapshot.config) == (CARD, engine.config)
        assert snapshot.blocks.free == snapshot.blocks.num_blocks == 64
        assert [state.name for state in snapshot.knobs] == [spec.name for spec in KNOB_SPECS]
        assert snapshot.knob_history == ()

    def test_views_of_every_state(self) -> None:
        engine = slow_engine(max_num_seqs=2, max_num_batched_tokens=9)
        engine.submit("a", PROMPT, 9, origin=Origin(user="ann", source="mqtt"), priority=3)
        engine.step()
        engine.submit("b", list(range(200, 230)), 9)
        engine.submit("c", PROMPT, 2)
        engine.step()
        engine.clock.advance(0.5)
        snapshot = engine.snapshot()
        a, b, c = snapshot.requests
        assert (a.request_id, a.state, a.prefilling) == ("a", RequestState.RUNNING, False)
        assert (a.origin.user, a.origin.source, a.priority) == ("ann", "mqtt", 3)
        assert (a.prompt_tokens, a.computed_tokens, a.output_tokens) == (6, 7, 2)
        assert (a.max_output_tokens, a.blocks, a.ordinal) == (9, 2, 1)
        assert (a.queue, a.ttft, a.tpot, a.itl_p99) == (0.0, 1.0, 1.0, 1.0)
        assert (b.request_id, b.state, b.prefilling) == ("b", RequestState.RUNNING, True)
        assert (b.computed_tokens, b.output_tokens, b.ttft, b.tpot) == (8, 0, None, None)
        assert (c.request_id, c.state) == ("c", RequestState.WAITING)
        assert c.queue == 1.5  # so far
        assert in_words(c.wait) == "no slot: 2 of 2 are taken"
        assert (snapshot.num_running, snapshot.num_waiting) == (2, 1)
        assert in_words(snapshot.head_wait) == in_words(c.wait)
        assert snapshot.step == 2
        engine.core.abort("c")
        ended = engine.snapshot().requests[-1]
        assert (ended.request_id, ended.state, ended.finish_reason) == (
            "c",
            RequestState.FINISHED,
            FinishReason.ABORT,
        )

    def test_errors_show(self) -> None:
        engine = slow_engine()
        engine.runner.nan_seqs = {1}
        engine.submit("a", PROMPT, 9)
        engine.finish()
        ended = view(engine, "a")
        assert ended.finish_reason is FinishReason.ERROR
        assert ended.error == "the model gave logits that are not finite"
        assert (ended.blocks, in_words(ended.wait)) == (0, "")

    def test_the_last_to_end_come_first_and_are_capped(self) -> None:
        engine = slow_engine()
        for i in range(MAX_ENDED_VIEWS + 6):
            engine.submit(f"r{i}", [i], 1)
            engine.finish()
        ids = [v.request_id for v in engine.snapshot().requests]
        assert ids == [f"r{i}" for i in range(MAX_ENDED_VIEWS + 5, 5, -1)]

    def test_the_map_names_who_holds_a_block(self) -> None:
        engine = slow_engine(num_blocks=6)
        engine.submit("a", PROMPT, 9)
        engine.submit("b", [1, 2, 3], 9)
        engine.step()
        blocks = engine.snapshot().blocks
        assert states_of(blocks) == "uuufff"
        ordinals = {v.request_id: v.ordinal for v in engine.snapshot().requests}
        held = [(segment.holders, segment.blocks) for segment in blocks.segments]
        assert held == [((ordinals["a"],), 2), ((ordinals["b"],), 1), ((), 3)]
        assert (blocks.free, blocks.cached, blocks.used, blocks.shared) == (3, 0, 3, 0)

    def test_history_of_knobs(self) -> None:
        engine = slow_engine()
        engine.submit("a", PROMPT, 3)
        engine.step()
        engine.core.change_knobs({"prefill_chunk": 4}, "ann")
        engine.step()
        engine.core.undo_knobs("bob")
        first, second = engine.snapshot().knob_history
        assert (first.who, first.step, first.time) == ("ann", 1, engine.clock.now - 1.0)
        assert (second.who, second.step, second.undoes) == ("bob", 2, True)
        assert second.after == first.before

    def test_a_knob_turned_while_a_step_runs_counts_from_the_next(self) -> None:
        engine = slow_engine()
        engine.submit("a", PROMPT, 3)
        engine.runner.on_step = lambda plan: engine.core.change_knobs(
            {"prefill_chunk": plan.step}, "ann"
        )
        engine.step()
        (change,) = engine.snapshot().knob_history
        assert change.step == 1

    def test_who_shares_what(self) -> None:
        """Three hold the first block of one prompt, two of them its second as well."""
        engine = slow_engine()
        engine.submit("a", list(range(9)), 9)
        engine.step()
        engine.submit("b", [*range(8), 50], 9)
        engine.submit("c", [*range(4), 60], 9)
        engine.submit("alone", [70, 71], 9)
        engine.step()
        snapshot = engine.snapshot()
        assert snapshot.sharing == (Sharing((1, 2, 3), 1), Sharing((1, 2), 1))
        shared = {view.request_id: view.shared_blocks for view in snapshot.requests}
        assert shared == {"a": 2, "b": 2, "c": 1, "alone": 0}

    def test_goodput_counts_those_that_met_both_targets(self) -> None:
        """A token a second is good, but for one pause: `late` began late, a and b were held up."""
        engine = slow_engine(ttft_target_ms=2000.0, tpot_target_ms=1000.0)
        for name in ("a", "b"):
            engine.submit(name, [1, 2], 3)
        engine.submit("late", [3], 1, arrival=engine.clock.now - 5)
        engine.submit("short", [4], 1)
        engine.submit("slow", [5], 9)
        engine.step()
        engine.clock.advance(5.0)
        goodput = engine.snapshot().goodput
        # Besides the two that have ended, three stand still and are late.
        assert (goodput.share, goodput.late) == (1 / 5, 3)
        while len(engine.ends) < 4:
            engine.step()
        engine.core.change_knobs({"tpot_target_ms": 9000.0}, "test")
        engine.finish()
        goodput = engine.snapshot().goodput
        assert goodput is not None
        # a and b were held up for 5 s between two tokens; slow ended under a looser target.
        assert (goodput.share, goodput.rate) == (2 / 5, 2 / WINDOW)
        assert (goodput.ttft_target, goodput.tpot_target) == (2.0, 9.0)

    def test_no_request_that_is_late_is_good_before_it_has_ended(self) -> None:
        engine = slow_engine(ttft_target_ms=3000.0, tpot_target_ms=1500.0, max_num_seqs=1)
        engine.submit("good", [1, 2], 2)
        engine.submit("waits", [3], 2)
        engine.step()
        engine.step()
        assert engine.snapshot().goodput.share == 1.0
        engine.clock.advance(1.5)  # nobody has come to it for 3.5 s
        goodput = engine.snapshot().goodput
        assert (goodput.share, goodput.late) == (0.5, 1)
        engine.step()
        engine.core.abort("waits")  # given up after its first token, which came too late
        goodput = engine.snapshot().goodput
        assert (goodput.share, goodput.late) == (0.5, 0)

    def test_a_reader_who_looks_later_than_the_engine_finds_nobody_late_for_that(self) -> None:
        engine = slow_engine(tpot_target_ms=400.0)
        engine.submit("a", [1, 2], 9)
        engine.step()
        draft = engine.core.draft()
        assert draft.snapshot(engine.clock.now + 0.5).goodput.late == 0
        # No newer one came for so long that the engine must stand still.
        assert draft.snapshot(engine.clock.now + 1.6).goodput.late == 1

    def test_who_is_stopped_in_time_is_judged_neither_way(self) -> None:
        engine = slow_engine(ttft_target_ms=3000.0)
        engine.submit("stopped", [1, 2], 9)
        engine.step()
        engine.core.abort("stopped")
        assert math.isnan(engine.snapshot().goodput.share)
