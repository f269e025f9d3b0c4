"""The online model of step time: what it finds, and what does not lead it astray."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.batch.plan import Row, StepPlan
from engine.scheduling.steptime import StepTime, Work
from engine.simulation.cost import Roofline
from engine.simulation.devices import named_device
from engine.simulation.shapes import named_shape


def works(seed: int, count: int, chunk: int = 60) -> Iterator[Work]:
    """Steps of up to 20 decodes, most with a chunk of a prompt."""
    rng = random.Random(seed)
    for _ in range(count):
        work = Work.of_decodes([rng.randrange(300) for _ in range(rng.randrange(1, 20))])
        if rng.random() < 0.7:
            work = work.prefill(rng.randrange(200), rng.randrange(1, chunk))
        yield work


def linear(work: Work) -> float:
    """10 ms a step, 1 ms a token, 0.1 ms a sequence, 2 us a token read, 1 us a pair."""
    return 0.010 + 0.001 * work.tokens + 1e-4 * work.rows + 2e-6 * work.read + 1e-6 * work.attended


def worst(model: StepTime, seed: int, factor: float = 1.0, chunk: int = 60) -> float:
    """Largest relative error over steps that were not shown."""
    return max(
        abs(model.seconds(work) / (factor * linear(work)) - 1) for work in works(seed, 100, chunk)
    )


def test_work_counts_what_a_plan_asks_for() -> None:
    work = Work.of_decodes([9, 0]).prefill(4, 3)
    # Three prompt tokens at 4, 5 and 6 see 5, 6 and 7 keys.
    assert work == Work(tokens=5, rows=3, read=11, attended=18)


def test_it_finds_known_coefficients() -> None:
    model = StepTime()
    for work in works(0, 600):
        model.learn(work, linear(work))
    assert worst(model, 1) < 0.005
    # Four times the largest chunk that was seen.
    assert worst(model, 2, chunk=240) < 0.02


def test_it_follows_a_roofline_from_reading_weights_to_arithmetic() -> None:
    device, shape = named_device("h100"), named_shape("llama-8b")
    cost = Roofline(device, shape)
    rng = random.Random(0)
    model = StepTime()

    def step() -> tuple[Work, float]:
        starts = [rng.randrange(64, 1024) for _ in range(rng.randrange(1, 64))]
        work = Work.of_decodes(starts)
        rows = [Row(seq, start, 1, (), True, False) for seq, start in enumerate(starts)]
        if rng.random() < 0.5:
            count = rng.randrange(1, 2048)
            work = work.prefill(0, count)
            rows.append(Row(100, 0, count, (), True, True))
        return work, cost.seconds(StepPlan(1, tuple(rows)))

    for _ in range(600):
        model.learn(*step())
    errors = sorted(
        abs(model.seconds(work) / real - 1) for work, real in (step() for _ in range(200))
    )
    assert errors[100] < 0.02
    assert errors[190] < 0.06


def test_it_survives_outliers() -> None:
    """One step in twenty takes ten times as long, as if something else had the machine."""
    rng = random.Random(0)
    model = StepTime()
    for work in works(0, 600):
        model.learn(work, linear(work) * (10 if rng.random() < 0.05 else 1))
    assert worst(model, 1) < 0.15


def test_noise_averages_out() -> None:
    rng = random.Random(0)
    model = StepTime()
    for work in works(0, 600):
        model.learn(work, linear(work) * rng.uniform(0.8, 1.2))
    assert worst(model, 1) < 0.12


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_it_learns_anew_when_the_machine_becomes_another(factor: float) -> None:
    model = StepTime()
    for work in works(0, 2000):
        model.learn(work, linear(work))
    for work in works(1, 60):
        model.learn(work, factor * linear(work))
    assert worst(model, 2, factor) < 0.1


def test_what_recent_steps_say_nothing_about_is_kept() -> None:
    """Decodes alone for 20,000 steps; then prompts cost what they did."""
    model = StepTime()
    for work in works(0, 600):
        model.learn(work, linear(work))
    work = Work.of_decodes([100, 50])
    for _ in range(20_000):
        model.learn(work, linear(work))
    assert worst(model, 1) < 0.05


def test_it_asks_for_eight_steps_and_ignores_empty_ones() -> None:
    model = StepTime()
    model.learn(Work(), 0.01)
    model.learn(Work(tokens=1, rows=1), 0.0)
    for _ in range(7):
        assert not model.ready
        model.learn(Work(tokens=1, rows=1), 0.01)
    assert not model.ready
    model.learn(Work(tokens=5, rows=1), 0.01)
    assert model.ready
    assert (model.steps, model.largest) == (8, 5)


@given(
    start=st.integers(0, 500),
    most=st.integers(0, 3000),
    decodes=st.integers(0, 40),
    seconds=st.floats(0, 5),
)
def test_fit_is_the_most_that_ends_in_time(
    start: int, most: int, decodes: int, seconds: float
) -> None:
    model, beside = taught(), Work.of_decodes([200] * decodes)
    count = model.fit(beside, start, most, seconds)
    assert 0 <= count <= most
    if count:
        assert model.seconds(beside.prefill(start, count)) <= seconds
    if count < most:
        assert model.seconds(beside.prefill(start, count + 1)) > seconds


_TAUGHT: list[StepTime] = []


def taught() -> StepTime:
    if not _TAUGHT:
        _TAUGHT.append(StepTime())
        for work in works(0, 200):
            _TAUGHT[0].learn(work, linear(work))
    return _TAUGHT[0]
