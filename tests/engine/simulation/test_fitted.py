"""Fitted: what it learns from records, against the truth that made them."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.config import EngineConfig
from engine.api.errors import InvalidConfigError
from engine.api.knobs import Knobs
from engine.batch.plan import StepPlan
from engine.simulation.cost import CostModel, Roofline
from engine.simulation.devices import named_device
from engine.simulation.fitted import Fitted, busy_steps, nonnegative_least_squares
from engine.simulation.records import Recording
from engine.simulation.shapes import named_shape
from engine.simulation.simulation import build
from tests.engine.simulation.support import Outcomes, Tasks, make_tasks, simulate

SHAPE = named_shape("387m")
CONFIG = EngineConfig(
    num_blocks=600, max_model_len=600, max_num_seqs=32, max_num_batched_tokens=512
)


class Noisy:
    """The truth: a roofline of which each step takes its own share more or less."""

    def __init__(self, spread: float, seed: int = 0) -> None:
        self._truth = Roofline(named_device("cpu"), SHAPE)
        self._spread = spread
        self._rng = random.Random(seed)

    def seconds(self, plan: StepPlan) -> float:
        return self._truth.seconds(plan) * self._rng.uniform(1 - self._spread, 1 + self._spread)

    def seconds_ahead(self, plan: StepPlan) -> Iterator[float]:
        while True:
            yield self.seconds(plan)


def run(cost: CostModel, tasks: Tasks, **knobs: object) -> tuple[Recording, Outcomes, float]:
    start = {"max_num_seqs": 32, "max_num_batched_tokens": 512}
    engine = build(CONFIG, Knobs(**(start | knobs)), SHAPE, cost)  # type: ignore[arg-type]
    outcomes = Outcomes()
    seconds = simulate(engine, tasks, outcomes)
    return Recording(SHAPE, engine.core.records.since(0)), outcomes, seconds


def learn(spread: float) -> tuple[Recording, Fitted]:
    recording, _, _ = run(Noisy(spread), Tasks(make_tasks(150, rate=2.0)))
    return recording, Fitted.to(recording)


def test_it_predicts_another_workload_under_other_knobs() -> None:
    """Fitted where steps vary by 20 %, it predicts a closed loop of longer prompts under a smaller
    budget within 2 %."""
    _, fitted = learn(spread=0.2)
    tasks = make_tasks(60, prompt=(100, 400), output=(30, 90), seed=1)
    wanted = {"max_num_seqs": 12, "max_num_batched_tokens": 256}
    _, real, real_seconds = run(Noisy(0.0), Tasks(tasks, 16), **wanted)
    _, predicted, seconds = run(fitted, Tasks(tasks, 16), **wanted)
    assert seconds == pytest.approx(real_seconds, rel=0.02)
    for field in ("ttft", "tpot"):
        ours, theirs = (
            statistics.median(getattr(o.timings, field) for o in outcomes.outcomes)
            for outcomes in (predicted, real)
        )
        assert ours == pytest.approx(theirs, rel=0.03)


def test_it_says_how_far_off_it_is() -> None:
    """Of steps spread evenly over +-20 %, half lie within 10 % and nine tenths within 18 %."""
    recording, fitted = learn(spread=0.2)
    assert fitted.error.steps == len(busy_steps(recording.records)) // 5
    assert fitted.error.median == pytest.approx(0.1, abs=0.025)
    assert fitted.error.p90 == pytest.approx(0.18, abs=0.03)
    assert learn(spread=0.0)[1].error.p90 < 0.01


def test_padding_costs_only_where_it_is_charged() -> None:
    recording, fitted = learn(spread=0.0)
    charged = Fitted.to(recording, charge_padding=True)
    plans: list[StepPlan] = []

    class Spy:
        def seconds(self, plan: StepPlan) -> float:
            plans.append(plan)
            return 1.0

        def seconds_ahead(self, plan: StepPlan) -> Iterator[float]:
            while True:
                yield self.seconds(plan)

    run(Spy(), Tasks(make_tasks(3)))
    rows = plans[1].rows
    padded = replace(plans[0], rows=rows[:1], padding=rows[1:])
    assert fitted.seconds(padded) == fitted.seconds(replace(padded, padding=()))
    assert charged.seconds(padded) == pytest.approx(fitted.seconds(plans[1]))


def test_only_steps_that_followed_another_count() -> None:
    """A period that a pause is part of says nothing about a step."""
    recording, _, _ = run(Noisy(0.0), Tasks(make_tasks(5, rate=0.01, output=(3, 3))))
    steps = busy_steps(recording.records)
    assert len(recording.records) == 5 * 3
    assert len(steps) == 5 * 2
    for record, seconds in steps:
        assert seconds == pytest.approx(record.times.forward)
    failed = [replace(record, error="x") for record in recording.records]
    assert busy_steps(failed) == []


def test_too_few_steps_are_refused() -> None:
    recording, _, _ = run(Noisy(0.0), Tasks(make_tasks(2, output=(10, 10))))
    with pytest.raises(InvalidConfigError, match=r"the records have \d steps .* at least 50"):
        Fitted.to(recording)


@given(
    st.integers(1, 6).flatmap(
        lambda n: st.lists(
            st.lists(st.floats(-10, 10), min_size=n + 1, max_size=n + 1),
            min_size=n + 1,
            max_size=12,
        )
    )
)
def test_least_squares_are_optimal(rows: list[list[float]]) -> None:
    """The conditions of Karush, Kuhn and Tucker: no coefficient can move and help."""
    table = np.round(np.array(rows), 3)
    matrix, target = table[:, :-1], table[:, -1]
    solution = nonnegative_least_squares(matrix, target)
    gradient = matrix.T @ (target - matrix @ solution)
    assert (solution >= 0).all()
    assert (gradient <= 1e-6 * (1 + np.linalg.norm(target)) * (1 + np.abs(matrix).max())).all()
    assert abs(gradient @ solution) <= 1e-6 * (1 + target @ target)


def test_a_recording_comes_back_from_its_file(tmp_path: Path) -> None:
    recording, fitted = learn(spread=0.1)
    path = tmp_path / "records.jsonl"
    recording.save(path)
    again = Recording.load(path)
    assert again.shape == SHAPE
    assert tuple(again.records) == tuple(recording.records)
    assert Fitted.to(again).error == fitted.error


def test_a_file_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    with pytest.raises(InvalidConfigError, match="cannot be read: No such file"):
        Recording.load(path)
    path.write_text("{}\n")
    with pytest.raises(
        InvalidConfigError, match=r"line 1 of .* is not a model's shape: num_params"
    ):
        Recording.load(path)
    Recording(SHAPE, ()).save(path)
    with path.open("a") as file:
        file.write('{"step": 1}\n')
    with pytest.raises(InvalidConfigError, match=r"line 2 of .* is not a step record: start"):
        Recording.load(path)
