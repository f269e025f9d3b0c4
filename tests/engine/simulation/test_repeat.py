"""Steps that a simulation takes at once have the figures of steps taken one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api.config import EngineConfig
from engine.api.knobs import Knobs
from engine.api.origin import Origin
from engine.batch.plan import Stretch
from engine.driving.drive import drive
from engine.driving.traffic import Outcome, Task
from engine.scheduling.composer import Policy
from engine.scheduling.orders import ORDERS
from engine.scheduling.policies import POLICIES
from engine.simulation.cost import Roofline
from engine.simulation.devices import named_device
from engine.simulation.shapes import named_shape
from engine.simulation.simulation import build
from tests.engine.simulation.support import Tasks, make_tasks


class Course:
    """A watcher of one run: each token's time and gap, and the pool at each end."""

    def __init__(
        self, knobs: Knobs, tasks: list[Task], *, num_blocks: int, model: str, at_once: bool
    ) -> None:
        shape = named_shape(model)
        config = EngineConfig(num_blocks=num_blocks, max_model_len=400, max_num_seqs=64)
        cost = Roofline(named_device("l4"), shape, charge_padding=True)
        simulated = build(config, knobs, shape, cost)
        self.core = simulated.core
        self.tokens: list[tuple[float, float | None]] = []
        self.ends: list[object] = []
        self.num_repeated = 0
        self.seconds = drive(
            self.core, Tasks(tasks), simulated.clock, self, self.repeated if at_once else None
        )

    def emitted(self, now: float, gap: float | None) -> None:
        self.tokens.append((now, gap))

    def repeated(self, stretch: Stretch) -> None:
        self.core.check()
        self.num_repeated += len(stretch.ends)
        last = stretch.start
        for end in stretch.ends:
            self.tokens += [(end, end - last)] * len(stretch.request_ids)
            last = end

    def ended(self, outcome: Outcome) -> None:
        pool = self.core._scheduler.cache.pool
        blocks = (pool.num_free, pool.num_cached, pool.num_used, bytes(pool._states))
        task = outcome.task.request_id
        self.ends.append((task, outcome.finished, outcome.timings, outcome.usage, blocks))

    def figures(self) -> dict[str, object]:
        """Everything that must be equal, however the steps were taken."""
        totals, scheduler = self.core.snapshot().totals, self.core._scheduler
        gaps = self.core._observer._latencies.itl
        return {
            "tokens": self.tokens,
            "ends": self.ends,
            "seconds": self.seconds,
            "step": scheduler.step,
            "totals": totals,
            "gaps": (gaps._times.last(), gaps._values.last()),
            "published": scheduler.cache.index._blocks,
            "policy": _state(scheduler.policy),
            "users": getattr(scheduler.waiting, "_served", None),
        }


def _state(policy: Policy) -> dict[str, object]:
    """The state of a policy, with the numbers of its model of step time."""
    state = dict(vars(policy))
    if "_model" in state:
        state["_model"] = vars(state["_model"])
    return state


def both(
    knobs: Knobs, tasks: list[Task], *, num_blocks: int, model: str = "387m"
) -> tuple[Course, Course]:
    stepped, at_once = (
        Course(knobs, tasks, num_blocks=num_blocks, model=model, at_once=at_once)
        for at_once in (False, True)
    )
    return stepped, at_once


@settings(max_examples=40, deadline=None)
@given(
    policy=st.sampled_from(tuple(POLICIES)),
    order=st.sampled_from(tuple(ORDERS)),
    seed=st.integers(0, 1000),
    rate=st.sampled_from((0.0, 0.5, 5.0, 50.0)),
    num_blocks=st.sampled_from((26, 40, 400)),
    model=st.sampled_from(("387m", "mistral-7b")),
    max_num_seqs=st.sampled_from((2, 6, 40)),
    prefill_chunk=st.sampled_from((0, 24)),
    prefix_caching=st.booleans(),
    waiting_served_ratio=st.sampled_from((0.0, 1.2)),
)
def test_steps_taken_at_once_change_no_figure(
    seed: int, rate: float, num_blocks: int, model: str, **knobs: object
) -> None:
    tasks = make_tasks(12, rate=rate, output=(1, 150), seed=seed)
    # Equal prompts share prefixes, and users have shares.
    tasks = [
        replace(
            task,
            prompt_token_ids=tasks[i // 3 * 3].prompt_token_ids,
            origin=Origin(user=("ann", "bob")[i % 2]),
        )
        for i, task in enumerate(tasks)
    ]
    stated = Knobs(
        max_num_batched_tokens=256,
        static_fill="idle",
        user_weights="ann=3",
        watermark=0.0,
        **knobs,  # type: ignore[arg-type]
    )
    stepped, at_once = both(stated, tasks, num_blocks=num_blocks, model=model)
    assert at_once.figures() == stepped.figures()


@pytest.mark.parametrize("policy", POLICIES)
def test_most_steps_of_few_requests_are_taken_at_once(policy: str) -> None:
    tasks = make_tasks(12, rate=0.2, output=(100, 150))
    knobs = Knobs(policy=policy, static_fill="idle", max_num_seqs=8)
    stepped, at_once = both(knobs, tasks, num_blocks=400)
    assert stepped.num_repeated == 0
    assert at_once.num_repeated > 0.8 * at_once.core._scheduler.step
    assert at_once.figures() == stepped.figures()
