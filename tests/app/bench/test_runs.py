"""Runs of a workload under settings in turn."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace

import pytest

from app.bench.lengths import Fixed
from app.bench.runs import Plan, run_all
from app.bench.scripts import Synthetic
from app.bench.setting import Setting
from app.bench.testbed import Testbed as Bed
from app.bench.testbed import in_virtual_time
from engine.api.config import EngineConfig
from engine.api.knobs import Knobs
from engine.batch.plan import StepPlan
from engine.core.core import EngineCore
from engine.driving.drive import Clock
from engine.simulation.shapes import named_shape

WORKLOAD = Synthetic(num_prompts=8, input_len=Fixed(8), output_len=Fixed(4))


class OneSecond:
    def __init__(self) -> None:
        self.collected = False

    def seconds(self, plan: StepPlan) -> float:
        self.collected |= gc.isenabled()
        return 1.0

    def seconds_ahead(self, plan: StepPlan) -> Iterator[float]:
        while True:
            yield self.seconds(plan)


@pytest.fixture
def cores() -> list[weakref.ref[EngineCore]]:
    """Those that were made."""
    return []


@pytest.fixture
def testbed(cores: list[weakref.ref[EngineCore]]) -> Bed:
    config = EngineConfig(num_blocks=100, max_model_len=64)
    bed = in_virtual_time(config, named_shape("387m"), OneSecond(), {})

    def make(knobs: Knobs) -> tuple[EngineCore, Clock]:
        core, clock = bed.make(knobs)
        cores.append(weakref.ref(core))
        return core, clock

    return replace(bed, make=make)


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def plan(testbed: Bed, rounds: int) -> Plan:
    settings = [
        (Setting(policy, {}), replace(testbed.knobs, policy=policy))
        for policy in ("stall_free", "orca")
    ]
    return Plan(workload=WORKLOAD, settings=settings, rounds=rounds, warmups=2)


@pytest.mark.usefixtures("no_collector")
def test_a_run_that_is_kept_keeps_no_core_and_a_core_makes_no_cycles(
    testbed: Bed, cores: list[weakref.ref[EngineCore]]
) -> None:
    runs = list(run_all(plan(testbed, 3), testbed))
    assert len(runs) == len(cores) == 6
    assert all(core() is None for core in cores)
    assert all(run.measured.steps.steps for run in runs)


def test_settings_take_turns_and_get_the_same_requests_in_a_round(testbed: Bed) -> None:
    runs = list(run_all(plan(testbed, 2), testbed))
    assert [run.setting.label for run in runs] == ["stall_free", "orca"] * 2
    assert [run.seed for run in runs] == [0, 0, 1, 1]


def test_in_real_time_each_setting_is_warmed_up_and_none_of_it_is_measured(
    testbed: Bed, cores: list[weakref.ref[EngineCore]]
) -> None:
    runs = list(run_all(plan(testbed, 1), replace(testbed, virtual=False)))
    assert len(cores) == 2 + len(runs)
    assert all(run.measured.completed == WORKLOAD.num_requests for run in runs)


@pytest.mark.parametrize("virtual", [True, False])
def test_the_collector_rests_in_virtual_time_only_and_is_back_after(virtual: bool) -> None:
    cost = OneSecond()
    config = EngineConfig(num_blocks=100, max_model_len=64)
    bed = in_virtual_time(config, named_shape("387m"), cost, {})
    list(run_all(plan(bed, 1), replace(bed, virtual=virtual)))
    assert cost.collected is not virtual
    assert gc.isenabled()
