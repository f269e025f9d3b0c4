"""SimulatedRunner: when sequences end and when the clock moves."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

import pytest

from engine.api.sampling import SamplingParams
from engine.batch.plan import NewSequence, Row, StepPlan
from engine.simulation.clock import VirtualClock
from engine.simulation.runner import EOS, TOKEN, SimulatedRunner


class Fixed:
    """Every step takes as long as it has tokens."""

    def seconds(self, plan: StepPlan) -> float:
        return float(plan.num_tokens)

    def seconds_ahead(self, plan: StepPlan) -> Iterator[float]:
        return repeat(float(plan.num_tokens))


def new(seq: int, prompt: int, min_tokens: int, outputs: int = 0) -> NewSequence:
    return NewSequence(
        seq=seq,
        token_ids=(5,) * (prompt + outputs),
        num_prompt_tokens=prompt,
        sampling=SamplingParams(min_tokens=min_tokens, max_tokens=50),
        seed=0,
        suppressed=(EOS,),
        block_ids=(),
    )


def row(seq: int, start: int, count: int, samples: bool = True) -> Row:
    return Row(seq, start, count, (), samples=samples, prefill=count > 1)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def test_it_ends_a_sequence_as_soon_as_it_may(clock: VirtualClock) -> None:
    runner = SimulatedRunner(clock, Fixed())

    def run(step: StepPlan) -> tuple[int, ...]:
        return runner.result(runner.start_step(step)).token_ids

    first = StepPlan(
        step=1, rows=(row(1, 0, 4), row(2, 0, 3, samples=False)), new=(new(1, 4, 3), new(2, 4, 1))
    )
    assert run(first) == (TOKEN,)
    assert run(StepPlan(step=2, rows=(row(1, 4, 1), row(2, 3, 1)))) == (TOKEN, EOS)
    assert run(StepPlan(step=3, rows=(row(1, 5, 1),), released=(2,))) == (EOS,)


def test_outputs_from_before_a_preemption_count(clock: VirtualClock) -> None:
    runner = SimulatedRunner(clock, Fixed())
    again = StepPlan(step=1, rows=(row(1, 0, 6),), new=(new(1, 4, 3, outputs=2),))
    assert runner.result(runner.start_step(again)).token_ids == (EOS,)


def test_no_minimum_is_one_token(clock: VirtualClock) -> None:
    runner = SimulatedRunner(clock, Fixed())
    step = StepPlan(step=1, rows=(row(1, 0, 4),), new=(new(1, 4, 0),))
    assert runner.result(runner.start_step(step)).token_ids == (EOS,)


def test_in_lockstep_a_step_begins_when_it_is_submitted(clock: VirtualClock) -> None:
    runner = SimulatedRunner(clock, Fixed())
    handle = runner.start_step(StepPlan(step=1, rows=(row(1, 0, 4),), new=(new(1, 4, 9),)))
    assert clock() == 0.0
    result = runner.result(handle)
    assert (clock(), result.times.forward) == (4.0, 4.0)
    clock.sleep_until(10.0)
    runner.result(runner.start_step(StepPlan(step=2, rows=(row(1, 4, 1),))))
    assert clock() == 11.0


def test_ahead_a_step_waits_for_the_device(clock: VirtualClock) -> None:
    """Planned at 0 behind a step of four seconds, so that it ends at five, not at one."""
    runner = SimulatedRunner(clock, Fixed(), depth=2)
    assert runner.depth == 2
    first = runner.start_step(StepPlan(step=1, rows=(row(1, 0, 4),), new=(new(1, 4, 9),)))
    second = runner.start_step(StepPlan(step=2, rows=(row(1, 4, 1),)))
    runner.result(first)
    assert clock() == 4.0
    runner.result(second)
    assert clock() == 5.0


def test_the_clock_never_runs_back(clock: VirtualClock) -> None:
    clock.sleep_until(3.0)
    clock.sleep_until(1.0)
    assert clock() == 3.0
