from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import pytest

from engine.api.effect import Effect, Obstacle
from engine.api.knobs import KnobChange, Knobs
from engine.api.lifecycle import FinishReason
from engine.api.telemetry import Ended, Ring, StepRecord
from engine.core.comparison import SPAN, Comparison, last_turn
from engine.core.latencies import Latencies
from tests.widgets.samples import record

CHANGE = KnobChange(100.0, 50, "local", Knobs(), replace(Knobs(), policy="static"))


def steps(first: float, last: float, seconds: float = 1.0, **fields: object) -> list[StepRecord]:
    """Steps that follow one another without a pause."""
    made = []
    while first < last:
        step = record(len(made), output_tokens=4, running=9, waiting=0, **fields)
        made.append(replace(step, start=first, end=first + seconds))
        first += seconds
    return made


class Engine:
    """The core's calls to its comparison."""

    def __init__(self, *records: StepRecord) -> None:
        self.ring: Ring[StepRecord] = Ring(1000)
        self.latencies = Latencies()
        self.comparison = Comparison(self.ring)
        self.ran(records)

    def ran(self, records: Iterable[StepRecord]) -> None:
        for one in records:
            self.ring.append(one)

    def arrived(self, time: float, prompt_tokens: int) -> None:
        self.latencies.prompts.add(time, prompt_tokens)

    def began(self, time: float, ttft: float) -> None:
        self.latencies.ttft.add(time, ttft)

    def ended(self, time: float, tpot: float, decoding: float) -> None:
        self.latencies.tpot.add(time, tpot)
        self.latencies.decoding.add(time, decoding)

    def effect(self, now: float, *history: KnobChange) -> Effect:
        found = self.comparison.effect(history or (CHANGE,), self.latencies, now)
        assert found is not None
        return found


def test_steps_on_both_sides_of_a_change() -> None:
    waste = {"given_slots": 100, "unused_slots": 5}
    before = steps(90, 100, prefill_rows=0, decode_rows=2, **waste)
    # The step under way at the change belongs to neither side.
    middle = replace(before[0], start=99.5, end=100.5)
    waste = {"given_slots": 300, "unused_slots": 60}
    after = steps(101, 111, 0.5, prefill_rows=1, decode_rows=5, **waste)
    effect = Engine(*before, middle, *after).effect(111.0)
    assert effect.change == CHANGE
    assert (effect.before.throughput, effect.since.throughput) == (4.0, 8.0)
    assert (effect.before.sequences, effect.since.sequences) == pytest.approx((2.0, 6.0))
    assert (effect.before.kv_waste, effect.since.kv_waste) == (0.05, 0.2)


def test_only_the_last_seconds_count() -> None:
    engine = Engine(*steps(0, 60, 1.0), *steps(60, 100, 0.5))
    engine.ran([*steps(100, 110, 1.0), *steps(110, 200, 0.25)])
    effect = engine.effect(200.0)
    assert SPAN == 30
    assert effect.before.throughput == 8.0
    assert effect.since.throughput == 16.0


def test_a_pause_with_nothing_to_do_is_no_loss_of_throughput_and_one_with_work_is() -> None:
    busy = steps(100, 104)
    idle = replace(busy[1], running=1, finished=(Ended("a", 9, FinishReason.STOP),))
    waits = replace(idle, waiting=1)
    for left, expected in ((idle, 16 / 4), (waits, 16 / 6)):
        later = (replace(r, start=r.start + 2, end=r.end + 2) for r in busy[2:])
        effect = Engine(busy[0], left, *later).effect(110.0)
        assert effect.since.throughput == pytest.approx(expected)


def test_a_request_that_was_under_way_at_the_change_counts_on_neither_side() -> None:
    engine = Engine()
    engine.began(95.0, 2.0)
    engine.ended(97.0, 0.02, decoding=2.0)
    engine.began(99.0, 1.0)
    engine.began(101.0, 3.0)
    engine.ended(101.0, 0.03, decoding=2.0)
    engine.began(106.0, 0.5)
    engine.ended(107.0, 0.04, decoding=8.0)
    engine.ended(108.0, 0.05, decoding=2.0)
    effect = engine.effect(108.0)
    assert (effect.before.ttft.count, effect.before.ttft.p50) == (2, 1.5)
    assert (effect.before.tpot.count, effect.before.tpot.p50) == (1, 0.02)
    assert (effect.since.ttft.count, effect.since.ttft.p50) == (1, 0.5)
    assert (effect.since.tpot.count, effect.since.tpot.p50) == (1, 0.05)
    assert math.isnan(effect.since.throughput)


def test_a_knob_turned_by_several_keys_is_one_change() -> None:
    keys = [
        KnobChange(
            time, 1, "local", replace(Knobs(), max_num_seqs=a), replace(Knobs(), max_num_seqs=b)
        )
        for time, a, b in ((10.0, 32, 16), (100.0, 16, 8), (101.0, 8, 4), (102.5, 4, 2))
    ]
    assert last_turn(keys) == keys[1:]
    engine = Engine(*steps(80, 100))
    for n in range(1, 5):
        effect = engine.effect(103.0, *keys[:n])
    assert effect.change.changed == {"max_num_seqs": (16, 2)}
    assert effect.before.throughput == 4.0


def test_a_turn_that_was_taken_back_at_once_has_no_effect() -> None:
    engine = Engine()
    assert engine.comparison.effect((), engine.latencies, 0.0) is None
    back = KnobChange(101.0, 51, "local", CHANGE.after, CHANGE.before, undoes=True)
    assert engine.comparison.effect((CHANGE, back), engine.latencies, 102.0) is None


def test_arrivals_and_the_load_on_both_sides() -> None:
    """A policy is changed while two requests run, and nobody comes since."""
    engine = Engine(*(replace(step, running=2, waiting=1) for step in steps(90, 100)))
    engine.arrived(92.0, 100)
    engine.arrived(92.0, 300)
    engine.ran(replace(step, running=2, waiting=0) for step in steps(101, 106))
    effect = engine.effect(106.0)
    assert (effect.before.prompts.count, effect.before.prompts.mean) == (2, 200.0)
    assert effect.since.prompts.count == 0
    assert (effect.before.underway, effect.since.underway) == pytest.approx((3.0, 2.0))
    assert effect.obstacle == Obstacle("2 came in 30s before")


def test_what_is_longer_ago_than_one_looks_back_is_not_denied() -> None:
    """Of five requests that had come since, it said "no arrivals since" half a minute later."""
    engine = Engine(*steps(90, 100), *steps(101, 150))
    for time in (91.0, 102.0):
        for _ in range(5):
            engine.arrived(time, 9)
    for now, why in ((110.0, None), (150.0, Obstacle("none came in 30s since"))):
        assert engine.effect(now).obstacle == why


def test_gaps_between_tokens_that_span_the_change_count_on_neither_side() -> None:
    engine = Engine()
    for end, gap in ((60.0, 9.0), (95.0, 0.1), (101.0, 2.0), (102.0, 0.3), (103.0, 0.5)):
        engine.latencies.itl.add(end, gap)
    effect = engine.effect(104.0)
    assert (effect.before.itl.count, effect.before.itl.p99) == (1, 0.1)
    assert effect.since.itl.count == 2


def test_what_has_settled_stays() -> None:
    """It was 222, 172 and 284 tok/s in two minutes, of one change."""
    engine = Engine(*steps(90, 100))
    for _ in range(6):
        engine.arrived(95.0, 9)
        engine.ended(99.0, 0.02, decoding=1.0)
    engine.ran(steps(101, 140, 0.5))
    assert [engine.effect(now).since.throughput for now in (106.0, 131.0)] == [8.0, 8.0]
    for _ in range(6):
        engine.arrived(132.0, 9)
        engine.ended(135.0, 0.02, decoding=1.0)
    settled = engine.effect(140.0)
    assert settled.is_settled
    engine.ran(steps(140, 200, 4.0))
    assert [engine.effect(now) for now in (170.0, 200.0)] == [settled] * 2
    again = KnobChange(200.0, 70, "local", CHANGE.after, CHANGE.before)
    engine.ran(steps(201, 250, 1.0))
    assert engine.effect(250.0, CHANGE, again).since.throughput == 4.0
