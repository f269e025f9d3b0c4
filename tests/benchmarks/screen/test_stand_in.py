"""The device that stands in for a model."""

from __future__ import annotations

import time

import numpy as np
import pytest

from benchmarks.screen.stand_in import STEP_SECONDS, StandIn
from engine.api.config import EngineConfig
from engine.api.sampling import SamplingParams
from engine.batch.plan import NewSequence, Row, StepPlan
from tests.support.clock import VirtualClock

TEXT = np.arange(100_000, dtype=np.int64)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    clock = VirtualClock(0.0)
    monkeypatch.setattr(time, "monotonic", clock)
    monkeypatch.setattr(time, "sleep", clock.advance)
    return clock


def stand_in(depth: int) -> StandIn:
    config = EngineConfig(num_blocks=8, max_model_len=64, max_num_seqs=2, device="stand-in")
    return StandIn(config, depth, TEXT)


def plan(step: int, start: int, count: int = 1) -> StepPlan:
    """A step of one sequence, which is new if it computes more than one token."""
    new = (NewSequence(1, (7, 8, 9), 3, SamplingParams(), 0, (), ()),) if count > 1 else ()
    blocks = (0,) if count > 1 else ()
    return StepPlan(step, (Row(1, start, count, blocks, True, count > 1),), new)


def test_steps_that_are_submitted_in_time_run_back_to_back(clock: VirtualClock) -> None:
    device = stand_in(depth=2)
    first, second = device.start_step(plan(1, 0, 3)), device.start_step(plan(2, 3))
    device.result(first)
    assert clock() == pytest.approx(STEP_SECONDS)
    clock.advance(STEP_SECONDS / 2)
    third = device.start_step(plan(3, 4))
    device.result(second)
    result = device.result(third)
    assert clock() == pytest.approx(3 * STEP_SECONDS)
    assert result.times.forward == pytest.approx(STEP_SECONDS)


def test_a_device_that_has_nothing_to_do_begins_when_it_is_given_a_step(
    clock: VirtualClock,
) -> None:
    device = stand_in(depth=1)
    device.result(device.start_step(plan(1, 0, 3)))
    clock.advance(0.001)
    device.result(device.start_step(plan(2, 3)))
    assert clock() == pytest.approx(2 * STEP_SECONDS + 0.001)


def test_a_thread_that_goes_on_late_shows_and_one_that_asks_late_has_not_waited(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = stand_in(depth=1)
    handle = device.start_step(plan(1, 0, 3))
    clock.advance(2 * STEP_SECONDS)
    assert device.result(handle).times.sample == 0.0
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.advance(seconds + 0.003))
    assert device.result(device.start_step(plan(2, 3))).times.sample == pytest.approx(0.003)


def test_its_tokens_are_those_of_the_text_in_order(clock: VirtualClock) -> None:
    device = stand_in(depth=1)
    tokens: list[int] = []
    for step in range(1, 6):
        prompt = step == 1
        work = plan(step, 0 if prompt else step + 1, 3 if prompt else 1)
        tokens += device.result(device.start_step(work)).token_ids
    assert tokens == list(range(tokens[0], tokens[0] + 5))
