"""The whole engine in virtual time: exact figures, repeatable, and linear in the requests."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from engine.api.config import EngineConfig
from engine.api.knobs import Knobs
from engine.api.lifecycle import FinishReason
from engine.batch.plan import Request, StepPlan
from engine.simulation.cost import Roofline
from engine.simulation.devices import named_device
from engine.simulation.shapes import named_shape
from engine.simulation.simulation import Simulated, build, envelope
from tests.engine.simulation.support import Outcomes, Tasks, make_tasks, simulate

SHAPE = named_shape("llama-8b")
DEVICE = named_device("h100")


class OneSecond:
    """Every step takes a second; counts steps and rows."""

    def __init__(self) -> None:
        self.steps = self.rows = 0

    def seconds(self, plan: StepPlan) -> float:
        self.steps += 1
        self.rows += len(plan.rows)
        return 1.0

    def seconds_ahead(self, plan: StepPlan) -> Iterator[float]:
        while True:
            yield self.seconds(plan)


def engine(cost: OneSecond | Roofline, *, depth: int = 1, **knobs: object) -> Simulated:
    config = envelope(DEVICE, SHAPE, max_model_len=1024)
    start = {"max_num_seqs": 16, "max_num_batched_tokens": 512, "queue_limit": 100_000}
    return build(config, Knobs(**(start | knobs)), SHAPE, cost, depth=depth)  # type: ignore[arg-type]


def test_figures_of_a_small_run_by_hand() -> None:
    """Three requests at 0, 0 and 10 s; the prompts of the first two share a step."""
    tasks = make_tasks(3, prompt=(20, 20), output=(4, 4))
    tasks[2] = type(tasks[2])(
        request_id="late",
        arrival=10.25,
        prompt_token_ids=tasks[2].prompt_token_ids,
        sampling=tasks[2].sampling,
    )
    outcomes = Outcomes()
    seconds = simulate(engine(OneSecond()), Tasks(tasks), outcomes)
    assert outcomes.timings == [(1.0, 1.0, 4.0), (1.0, 1.0, 4.0), (1.0, 1.0, 14.25)]
    assert seconds == 14.25
    assert outcomes.gaps.count(None) == 3
    assert outcomes.gaps.count(1.0) == 9


def test_requests_end_at_their_true_length_below_what_they_announce() -> None:
    tasks = make_tasks(40, output=(1, 50))
    outcomes = Outcomes()
    simulate(engine(OneSecond()), Tasks(tasks), outcomes)
    assert len(outcomes.outcomes) == 40
    for outcome in outcomes.outcomes:
        length = outcome.task.sampling.min_tokens
        assert outcome.usage.completion_tokens == length
        assert outcome.reason is FinishReason.STOP


def test_the_same_workload_gives_the_same_figures() -> None:
    def figures() -> list[tuple[float | None, ...]]:
        outcomes = Outcomes()
        cost = Roofline(DEVICE, SHAPE)
        simulate(engine(cost), Tasks(make_tasks(100, rate=50.0)), outcomes)
        return outcomes.timings

    assert figures() == figures()


def test_preemption_changes_no_length() -> None:
    """A pool for about five of sixteen sequences: all still end where they should."""
    config = EngineConfig(num_blocks=80, max_model_len=512, max_num_seqs=16)
    knobs = Knobs(max_num_seqs=16, watermark=0.0)
    simulated = build(config, knobs, SHAPE, OneSecond())
    outcomes = Outcomes()
    tasks = make_tasks(40, prompt=(16, 64), output=(100, 250))
    simulate(simulated, Tasks(tasks), outcomes)
    assert simulated.core.snapshot().totals.preemptions > 0
    lengths = {o.task.request_id: o.usage.completion_tokens for o in outcomes.outcomes}
    assert lengths == {task.request_id: task.sampling.min_tokens for task in tasks}


@pytest.mark.parametrize("peak_link", [1e6, 64e9], ids=["slow", "fast"])
def test_auto_swaps_where_the_link_is_worth_it(peak_link: float) -> None:
    """A thousand tokens take longer than their copies; two hundred would be nearly free."""
    device = replace(DEVICE, peak_link=peak_link)
    config = envelope(device, SHAPE, max_model_len=2048, kv_slots=400 * 16, swap_memory=1 << 30)
    assert config.num_host_blocks == (1 << 30) // (16 * SHAPE.kv_bytes_per_token)
    knobs = Knobs(max_num_seqs=16, watermark=0.0, prefix_caching=False)
    simulated = build(config, knobs, SHAPE, Roofline(device, SHAPE))
    outcomes = Outcomes()
    simulate(simulated, Tasks(make_tasks(40, prompt=(900, 999), output=(300, 900))), outcomes)
    totals = simulated.core.snapshot().totals
    assert totals.preemptions > 0
    assert totals.swaps == (totals.preemptions if peak_link == 64e9 else 0)
    (state,) = (s for s in simulated.core.snapshot().knobs if s.name == "preemption")
    assert state.effective == ("swap" if totals.swaps else "recompute")
    assert re.fullmatch(r"\S+ ms to swap the last victim, \S+ ms to recompute it", state.note), (
        state.note
    )


def test_planning_ahead_hides_nothing_when_planning_is_free() -> None:
    """In virtual time plans cost nothing, so one step ahead changes when a sequence's end is known,
    by one step, and nothing else."""
    ends = []
    for depth in (1, 2):
        outcomes = Outcomes()
        tasks = make_tasks(10, prompt=(20, 20), output=(5, 5))
        seconds = simulate(engine(OneSecond(), depth=depth), Tasks(tasks), outcomes)
        assert [o.usage.completion_tokens for o in outcomes.outcomes] == [5] * 10
        ends.append(seconds)
    assert ends[0] == 5.0
    assert 5.0 <= ends[1] <= 6.0


@pytest.mark.parametrize("count", [100, 400])
def test_work_is_linear_in_the_requests(count: int) -> None:
    """Counted, not timed: rows are the tokens, each once, and steps fill the slots."""
    cost = OneSecond()
    tasks = make_tasks(count, prompt=(64, 64), output=(32, 32))
    simulate(engine(cost, max_num_batched_tokens=2048), Tasks(tasks), Outcomes())
    assert cost.rows == count * 32
    assert cost.steps <= count * 32 / 16 * 1.1 + 32


def requests() -> list[Request]:
    return [each for each in gc.get_objects() if type(each) is Request]


def test_ended_requests_are_let_go() -> None:
    """Memory is bounded: of 300 ended requests the engine keeps none, and 64 views of them."""
    others = requests()  # what tests before this one have left behind, kept from coming anew
    simulated = engine(OneSecond())
    simulate(simulated, Tasks(make_tasks(300, prompt=(5, 5), output=(2, 2))), Outcomes())
    gc.collect()
    assert len(requests()) <= len(others)
    snapshot = simulated.core.snapshot()
    assert len(snapshot.requests) == 64
    assert snapshot.totals.finished == 300


def test_it_imports_no_torch() -> None:
    names = "simulation, fitted, records, cost, runner, devices, shapes"
    code = (
        f"import sys; from engine.simulation import {names}; "
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
