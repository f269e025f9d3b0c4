"""The lines beside the errors of the simulator."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat

import pytest

from app.bench.lengths import Fixed
from app.bench.runs import Plan, Run, run_all
from app.bench.scripts import Synthetic
from app.bench.setting import Setting
from app.bench.testbed import in_virtual_time
from benchmarks.simulation import errors, report, rows, standard_errors
from engine.api.config import EngineConfig
from engine.batch.plan import StepPlan
from engine.simulation.shapes import named_shape


class Steps:
    """Every step takes as long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def seconds(self, plan: StepPlan) -> float:
        return self._seconds

    def seconds_ahead(self, plan: StepPlan) -> Iterator[float]:
        return repeat(self._seconds)


def serve(*step_seconds: float) -> list[Run]:
    """A run of 20 requests at once for each: two steps each, all in one batch."""
    config = EngineConfig(num_blocks=1000, max_model_len=100)
    runs: list[Run] = []
    for seconds in step_seconds:
        testbed = in_virtual_time(config, named_shape("387m"), Steps(seconds), {})
        knobs = replace(testbed.knobs, max_num_seqs=20)
        workload = Synthetic(num_prompts=20, input_len=Fixed(4), output_len=Fixed(2))
        runs += run_all(Plan(workload=workload, settings=[(Setting("", {}), knobs)]), testbed)
    return runs


def test_samples_of_all_rounds_are_pooled_and_throughput_is_of_all_their_time() -> None:
    found = rows(serve(1.0, 3.0))
    assert found["request throughput (req/s)"] == pytest.approx(40 / 8)
    assert found["output throughput (tok/s)"] == pytest.approx(80 / 8)
    assert found["TTFT mean (ms)"] == pytest.approx(2000)
    assert found["TTFT p99 (ms)"] == pytest.approx(3000)
    assert found["TPOT p50 (ms)"] == pytest.approx(2000)


def test_an_error_is_relative_to_the_real_run_and_so_is_its_standard_error() -> None:
    predicted, real = serve(1.0, 1.0, 1.0), serve(0.9, 1.0, 1.1)
    assert errors(predicted, real)["TTFT mean (ms)"] == pytest.approx(0.0)
    assert errors(serve(1.1), serve(1.0))["E2EL p90 (ms)"] == pytest.approx(0.1)
    # Left out in turn: 1 / 1.05, 1 and 1 / 0.95 of the real mean.
    off = [1 / 1.05 - 1, 0.0, 1 / 0.95 - 1]
    mean = sum(off) / 3
    wanted = math.sqrt(2 / 3 * sum((x - mean) ** 2 for x in off))
    assert standard_errors(predicted, real)["TTFT mean (ms)"] == pytest.approx(wanted)
    assert math.isnan(standard_errors(predicted[:1], real[:1])["TTFT mean (ms)"])


def test_rows_that_chance_may_move_as_far_as_is_wanted_are_marked() -> None:
    steady = "\n".join(report(serve(1.0, 1.0), serve(1.0, 1.01)))
    assert "?" not in steady
    assert "standard error over 2 rounds, 40 requests; a p99 is set by the 1 slowest" in steady
    noisy = "\n".join(report(serve(1.0, 1.0), serve(0.7, 1.3)))
    assert "they show neither agreement nor the lack of it" in noisy
    assert "%  ?" in "\n".join(report(serve(1.0), serve(1.0)))
