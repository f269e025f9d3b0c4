from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import pytest

from app.screens.feeds.comparison import SPAN, Comparison, last_turn
from engine.api.knobs import KnobChange, Knobs
from engine.api.lifecycle import FinishReason, RequestState
from engine.api.snapshot import RequestView
from engine.api.telemetry import Ended, Samples, StepRecord
from tests.widgets.samples import LATENCY, record, snapshot, view

CHANGE = KnobChange(100.0, 50, "local", Knobs(), replace(Knobs(), policy="static"))


def steps(first: float, last: float, seconds: float = 1.0, **fields: object) -> list[StepRecord]:
    """Steps that follow one another without a pause."""
    made = []
    while first < last:
        step = record(len(made), output_tokens=4, running=9, waiting=0, **fields)
        made.append(replace(step, start=first, end=first + seconds))
        first += seconds
    return made


def look(
    comparison: Comparison,
    time: float,
    *requests: RequestView,
    history: tuple[KnobChange, ...] = (),
    records: Iterable[StepRecord] = (),
) -> None:
    comparison.look(snapshot(time=time, requests=requests, knob_history=history), records)


def ended(ordinal: int, tpot: float) -> RequestView:
    state = RequestState.FINISHED
    return view(ordinal, state=state, finish_reason=FinishReason.STOP, ttft=0.1, tpot=tpot)


def test_steps_on_both_sides_of_a_change() -> None:
    comparison = Comparison()
    waste = {"given_slots": 100, "unused_slots": 5}
    before = steps(90, 100, prefill_rows=0, decode_rows=2, **waste)
    # The step under way at the change belongs to neither side.
    middle = [replace(before[0], start=99.5, end=100.5)]
    waste = {"given_slots": 300, "unused_slots": 60}
    after = steps(101, 111, 0.5, prefill_rows=1, decode_rows=5, **waste)
    records = [*before, *middle, *after]
    look(comparison, 100.2, history=(CHANGE,), records=records)
    effect = comparison.effect(111.0, records)
    assert effect is not None
    assert effect.change == CHANGE
    assert (effect.before.throughput, effect.since.throughput) == (4.0, 8.0)
    assert (effect.before.sequences, effect.since.sequences) == pytest.approx((2.0, 6.0))
    assert (effect.before.kv_waste, effect.since.kv_waste) == (0.05, 0.2)


def test_only_the_last_seconds_count() -> None:
    comparison = Comparison()
    slow, fast = steps(0, 60, 1.0), steps(60, 100, 0.5)
    look(comparison, 100.2, history=(CHANGE,), records=[*slow, *fast])
    records = [*steps(100, 110, 1.0), *steps(110, 200, 0.25)]
    effect = comparison.effect(200.0, records)
    assert effect is not None
    assert SPAN == 30
    assert effect.before.throughput == 8.0
    assert effect.since.throughput == 16.0


def test_a_pause_with_nothing_to_do_is_no_loss_of_throughput_and_one_with_work_is() -> None:
    busy = steps(100, 104)
    idle = replace(busy[1], running=1, finished=(Ended("a", 9, FinishReason.STOP),))
    waits = replace(idle, waiting=1)
    for left, expected in ((idle, 16 / 4), (waits, 16 / 6)):
        comparison = Comparison()
        look(comparison, 100.0, history=(CHANGE,))
        records = [busy[0], left, *(replace(r, start=r.start + 2, end=r.end + 2) for r in busy[2:])]
        effect = comparison.effect(110.0, records)
        assert effect is not None
        assert effect.since.throughput == pytest.approx(expected)


def test_a_request_that_was_under_way_at_the_change_counts_on_neither_side() -> None:
    comparison = Comparison()
    look(comparison, 90.0)
    look(comparison, 95.0, view(1, ttft=2.0))  # it began at 88 or later
    look(comparison, 97.0, ended(1, 0.02))
    look(comparison, 99.0, ended(1, 0.02), view(2, ttft=1.0))
    look(comparison, 101.0, ended(2, 0.03), view(3, ttft=3.0), history=(CHANGE,))
    look(comparison, 106.0, view(3, ttft=3.0), view(4, ttft=0.5), history=(CHANGE,))
    look(comparison, 108.0, ended(3, 0.04), ended(4, 0.05), history=(CHANGE,))
    effect = comparison.effect(108.0, ())
    assert effect is not None
    assert (effect.before.ttft.count, effect.before.ttft.p50) == (2, 1.5)
    assert (effect.before.tpot.count, effect.before.tpot.p50) == (1, 0.02)
    assert (effect.since.ttft.count, effect.since.ttft.p50) == (1, 0.5)
    assert (effect.since.tpot.count, effect.since.tpot.p50) == (1, 0.05)
    assert math.isnan(effect.since.throughput)


def test_each_request_counts_once_and_what_was_stopped_has_no_tpot() -> None:
    comparison = Comparison()
    stopped = replace(ended(2, 0.5), finish_reason=FinishReason.ABORT)
    for time in (100.0, 105.0, 106.0, 107.0):
        requests = (ended(1, 0.02), stopped) if time > 100 else ()
        look(comparison, time, *requests, history=(CHANGE,))
    effect = comparison.effect(107.0, ())
    assert effect is not None
    assert (effect.since.tpot.count, effect.since.ttft.count) == (1, 0)  # begun at 99.9 perhaps


def test_a_knob_turned_by_several_keys_is_one_change() -> None:
    keys = [
        KnobChange(
            time, 1, "local", replace(Knobs(), max_num_seqs=a), replace(Knobs(), max_num_seqs=b)
        )
        for time, a, b in ((10.0, 32, 16), (100.0, 16, 8), (101.0, 8, 4), (102.5, 4, 2))
    ]
    assert last_turn(keys) == keys[1:]
    comparison = Comparison()
    before = steps(80, 100)
    for n in range(1, 5):
        look(comparison, 103.0, history=tuple(keys[:n]), records=before)
    effect = comparison.effect(103.0, before)
    assert effect is not None
    assert effect.change.changed == {"max_num_seqs": (16, 2)}
    assert effect.before.throughput == 4.0


def test_a_turn_that_was_taken_back_at_once_has_no_effect() -> None:
    comparison = Comparison()
    assert comparison.effect(0.0, ()) is None
    back = KnobChange(101.0, 51, "local", CHANGE.after, CHANGE.before, undoes=True)
    look(comparison, 102.0, history=(CHANGE, back))
    assert comparison.effect(102.0, ()) is None


def test_arrivals_and_the_load_on_both_sides() -> None:
    """A policy is changed while two requests run, and nobody comes since."""
    comparison = Comparison()
    look(comparison, 90.0)
    first = view(1, prompt_tokens=100), view(2, prompt_tokens=300)
    look(comparison, 92.0, *first)
    before = [replace(step, running=2, waiting=1) for step in steps(90, 100)]
    look(comparison, 101.0, *first, history=(CHANGE,), records=before)
    after = [replace(step, running=2, waiting=0) for step in steps(101, 106)]
    look(comparison, 106.0, *first, history=(CHANGE,), records=[*before, *after])
    effect = comparison.effect(106.0, [*before, *after])
    assert effect is not None
    assert (effect.before.prompts.count, effect.before.prompts.mean) == (2, 200.0)
    assert effect.since.prompts.count == 0
    assert (effect.before.underway, effect.since.underway) == pytest.approx((3.0, 2.0))
    assert effect.line == "not comparable: 2 came in 30s before"


def test_what_is_longer_ago_than_one_looks_back_is_not_denied() -> None:
    """Of five requests that had come since, it said "no arrivals since" half a minute later."""
    comparison = Comparison()
    five = [view(n) for n in range(1, 6)]
    look(comparison, 90.0)
    look(comparison, 91.0, *five)
    look(comparison, 101.0, *five, history=(CHANGE,), records=steps(90, 100))
    look(comparison, 102.0, *five, *(view(n) for n in range(6, 11)), history=(CHANGE,))
    for now, why in ((110.0, ""), (150.0, "none came in 30s since")):
        effect = comparison.effect(now, steps(101, 150))
        assert effect is not None
        assert effect.obstacle == why


def test_gaps_between_tokens_that_span_the_change_count_on_neither_side() -> None:
    comparison = Comparison()
    gaps = Samples()
    for end, gap in ((60.0, 9.0), (95.0, 0.1), (101.0, 2.0), (102.0, 0.3), (103.0, 0.5)):
        gaps.add(end, gap)
    latency = replace(LATENCY, samples={"itl": gaps})
    for time, history in ((99.0, ()), (101.0, (CHANGE,)), (104.0, (CHANGE,))):
        comparison.look(snapshot(time=time, latency=latency, knob_history=history), ())
    effect = comparison.effect(104.0, ())
    assert effect is not None
    assert (effect.before.itl.count, effect.before.itl.p99) == (1, 0.1)
    assert effect.since.itl.count == 2


def test_what_has_settled_stays() -> None:
    """It was 222, 172 and 284 tok/s in two minutes, of one change."""
    comparison = Comparison()
    look(comparison, 90.0)
    look(comparison, 99.0, *(ended(n, 0.02) for n in range(1, 7)))
    before = steps(90, 100)
    look(comparison, 101.0, history=(CHANGE,), records=before)
    others = [ended(n, 0.02) for n in range(7, 13)]
    look(comparison, 110.0, *others[:3], history=(CHANGE,))
    after = steps(101, 140, 0.5)
    assert [shown(comparison, now, after) for now in (106.0, 131.0)] == [8.0, 8.0]
    look(comparison, 135.0, *others, history=(CHANGE,))
    slow = steps(140, 200, 4.0)
    assert [shown(comparison, now, [*after, *slow]) for now in (140.0, 170.0, 200.0)] == [8.0] * 3
    again = KnobChange(200.0, 70, "local", CHANGE.after, CHANGE.before)
    look(comparison, 201.0, history=(CHANGE, again), records=slow)
    assert shown(comparison, 250.0, steps(201, 250, 1.0)) == 4.0


def shown(comparison: Comparison, now: float, records: Iterable[StepRecord]) -> float:
    effect = comparison.effect(now, records)
    assert effect is not None
    return effect.since.throughput
