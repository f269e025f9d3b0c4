"""`slo`: its golden timeline, what it promises in any case, and a workload that no fixed budget
serves as well."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api.client import Submission
from engine.api.config import EngineConfig
from engine.api.knobs import Knobs
from engine.api.sampling import SamplingParams
from engine.api.waiting import in_words
from engine.batch.plan import StepPlan
from engine.scheduling.policies import slo
from engine.scheduling.policies.slo import Slo
from engine.scheduling.steptime import Work
from engine.simulation.cost import Roofline
from engine.simulation.devices import named_device
from engine.simulation.shapes import named_shape
from engine.simulation.simulation import build, envelope
from tests.engine.simulation.support import Outcomes, Tasks, make_tasks, simulate
from tests.support.harness import SHAPE as SCRIPTED
from tests.support.harness import CoreHarness

SHAPE = named_shape("llama-8b")


@dataclass
class Linear:
    """A step takes 10 ms, and 1 ms for each token. Keeps the plans."""

    plans: list[StepPlan] = field(default_factory=list)

    def seconds(self, plan: StepPlan) -> float:
        self.plans.append(plan)
        return 0.010 + 0.001 * plan.num_tokens

    def seconds_ahead(self, plan: StepPlan) -> Iterator[float]:
        while True:
            yield self.seconds(plan)


class LinearEngine:
    """An engine of `Linear` cost under `slo`, aiming at a TPOT of 40.15 ms and a TTFT of 400 ms."""

    def __init__(self, *, taught: bool = True, depth: int = 1, **knobs: object) -> None:
        self.cost = Linear()
        config = EngineConfig(
            num_blocks=200, max_model_len=512, max_num_seqs=8, max_num_batched_tokens=64
        )
        stated = {
            "policy": "slo",
            "max_num_seqs": 8,
            "max_num_batched_tokens": 64,
            "ttft_target_ms": 400 / slo._AIM,
            "tpot_target_ms": 40.15 / slo._AIM,
            "watermark": 0.0,
        }
        self.simulated = build(
            config,
            Knobs(**(stated | knobs)),  # type: ignore[arg-type]
            SHAPE,
            self.cost,
            depth=depth,
        )
        self.core, self.clock = self.simulated.core, self.simulated.clock
        if taught:
            policy = self.core._scheduler.policy
            assert isinstance(policy, Slo)
            teach(policy)

    def submit(self, name: str, prompt: int | list[int], output: int, arrival: float) -> None:
        """A request with a prompt like no other's, or the one that is given."""
        number = self.core._table._arrivals.count + 1
        ids = [number] * prompt if isinstance(prompt, int) else prompt
        sampling = SamplingParams(temperature=0.0, min_tokens=output, max_tokens=output)
        self.core.add_request(Submission(request_id=name), ids, sampling, arrival)

    def step(self) -> tuple[int, list[tuple[int, int]]]:
        """When it began, in ms, and the (sequence, tokens) of its rows."""
        now, before = self.clock(), len(self.cost.plans)
        self.core.step()
        assert len(self.cost.plans) == before + 1
        rows = self.cost.plans[-1].rows
        return round(now * 1e3), [(row.seq, row.count) for row in rows]


def teach(policy: Slo) -> None:
    """Let the model see 400 steps of `Linear` cost, different enough to tell its terms apart."""
    rng = random.Random(0)
    for _ in range(400):
        work = Work.of_decodes([rng.randrange(300) for _ in range(rng.randrange(1, 20))])
        if rng.random() < 0.7:
            work = work.prefill(rng.randrange(200), rng.randrange(1, 60))
        policy._model.learn(work, 0.010 + 0.001 * work.tokens)


def test_golden_timeline() -> None:
    """A step of n tokens takes 10 + n ms; 40.15 ms hold 30. With P tokens of prompts waiting that
    are due in D ms, the pace beside one decode is the least p with p / (11 + p) >= P / (D - 40).

    - 0 ms: A (5 tokens) runs alone.
    - 15: B (60) is due at 415. Pace: 60 / 360 = 0.167, and 3 / 14 is the first above. What came
      lately, (5 exp(-15 / 400) + 60) / 400 = 0.162, asks for no more.
    - 29: 57 / 346 = 0.165: 3 again.
    - 43: C (40) and G (400) came. Steps of 40.15 ms leave 29 tokens, 0.722 / ms: B and C end in 130
      ms, G in 684 and is due in 400: it is given up and goes last. What came lately asks for more
      than a token a ms, which no step has: as many as are allowed. A has had 3 tokens and is due at
      15 + 3 * 40.15 = 135.45: 92 ms allow 82 tokens, the knob 64.
    - 117: B has its first token; its next is due in 40.15 ms: 30 tokens, 2 of them decodes.
    - 157: B is due at 117 + 2 * 40.15 = 197.3: 30 tokens. C ends, G gets 25.
    - 197: B has ended, C has its first token: 30 tokens. 237: C is due at 277.3: 30.
    - 277: C has ended. A has had 8 tokens and is due at 15 + 8 * 40.15 = 336.2: 59 ms, 49 tokens.
    - 336: A is due at 376.35: 30 tokens. D (30) came at 300, can be in time and goes before G.
    - 376: A is due at 416.5: 30 tokens, the last of D's prompt and a decode among them.
    - 416: D has its first token: 30, and 2 decodes.
    """
    engine = LinearEngine()
    engine.submit("A", 5, 30, 0.0)
    timeline = [engine.step()]
    engine.submit("B", 60, 3, 0.015)
    timeline += [engine.step(), engine.step()]
    engine.submit("C", 40, 3, 0.043)
    engine.submit("G", 400, 2, 0.043)
    timeline += [engine.step() for _ in range(6)]
    engine.submit("D", 30, 2, 0.300)
    timeline += [engine.step() for _ in range(3)]
    a, b, c, g, d = range(1, 6)
    assert timeline == [
        (0, [(a, 5)]),
        (15, [(a, 1), (b, 3)]),
        (29, [(a, 1), (b, 3)]),
        (43, [(a, 1), (b, 54), (c, 9)]),
        (117, [(a, 1), (b, 1), (c, 28)]),
        (157, [(a, 1), (b, 1), (c, 3), (g, 25)]),
        (197, [(a, 1), (c, 1), (g, 28)]),
        (237, [(a, 1), (c, 1), (g, 28)]),
        (277, [(a, 1), (g, 48)]),
        (336, [(a, 1), (d, 29)]),
        (376, [(a, 1), (d, 1), (g, 28)]),
        (416, [(a, 1), (d, 1), (g, 28)]),
    ]


def test_what_waits_says_why() -> None:
    engine = LinearEngine()
    engine.submit("A", 5, 30, 0.0)
    engine.step()
    engine.submit("late", 400, 2, 0.015)
    engine.submit("B", 100, 2, 0.015)
    engine.step()
    assert in_words(engine.core.head_wait) == "those that can still meet the TTFT target go first"
    engine = LinearEngine()
    engine.submit("A", 100, 2, 0.0)
    engine.submit("B", 100, 2, 0.0)
    engine.step()
    assert in_words(engine.core.head_wait) == "no time: the step's 30 tokens are used up"
    engine = LinearEngine(max_num_seqs=1)
    engine.submit("A", 5, 9, 0.0)
    engine.submit("B", 5, 9, 0.0)
    engine.step()
    assert in_words(engine.core.head_wait) == "no slot: 1 of 1 are taken"


def test_before_it_knows_the_machine_the_knob_is_the_budget() -> None:
    engine = LinearEngine(taught=False)
    engine.submit("A", 200, 9, 0.0)
    engine.submit("B", 10, 9, 0.0)
    assert engine.step() == (0, [(1, 64)])
    assert [engine.step()[1] for _ in range(3)] == [[(1, 64)], [(1, 64)], [(1, 8), (2, 10)]]
    assert {record.budget for record in engine.core.records.since(0)} == {64}


def test_steps_grow_to_twice_the_largest_seen() -> None:
    """Decodes of one token teach nothing about a step of 64, however urgent a prompt is."""
    engine = LinearEngine(taught=False, tpot_target_ms=10_000.0, ttft_target_ms=600_000.0)
    engine.submit("A", 2, 40, 0.0)
    for _ in range(9):
        engine.step()
    engine.submit("B", 300, 2, engine.clock() - 570)
    sizes = []
    for _ in range(6):
        engine.step()
        sizes.append(engine.cost.plans[-1].num_tokens)
    assert sizes == [4, 8, 16, 32, 64, 64]


def test_a_cached_prefix_makes_a_long_prompt_short() -> None:
    """400 tokens would be given up, see the golden timeline; all but 16 are cached."""
    engine = LinearEngine(tpot_target_ms=200.0)
    prompt = list(range(1, 401))
    engine.submit("first", prompt, 1, 0.0)
    while engine.core.num_unfinished:
        engine.step()
    now = engine.clock()
    engine.submit("short", 100, 2, now)
    engine.submit("again", prompt, 2, now - 0.1)
    engine.step()
    assert [row.seq for row in engine.cost.plans[-1].rows][:1] == [3]


@pytest.mark.parametrize("present", [6, 30])
def test_a_late_prompt_gets_its_share(present: int) -> None:
    """Prompts of 20 tokens come as fast as they are served, with slots free and with all taken. One
    of 300 is given up at once; it is its turn after 32 times its tokens and those of the few that
    are late before it."""
    engine = LinearEngine()
    engine.submit("long", 300, 1, 0.0)
    others = 0
    while True:
        while engine.core.num_unfinished < present:
            engine.submit(f"{engine.core._table._arrivals.count}", 20, 2, engine.clock())
        ended = {output.request_id for output in engine.core.step() if output.end}
        if "long" in ended:
            break
        rows = engine.cost.plans[-1].rows
        others += sum(row.count for row in rows if row.seq != 1 and row.prefill)
    assert 300 * slo._OVERTAKING / 4 < others < 300 * slo._OVERTAKING * 1.25


@pytest.mark.parametrize("depth", [1, 2])
def test_the_next_step_is_planned_from_when_it_will_begin(depth: int) -> None:
    """With a step in flight, too, every request keeps to its pace, though prompts keep coming."""
    engine = LinearEngine(depth=depth)
    outcomes = Outcomes()
    tasks = make_tasks(60, rate=10, prompt=(10, 60), output=(20, 40), seed=1)
    simulate(engine.simulated, Tasks(tasks), outcomes)
    tpots = [outcome.timings.tpot for outcome in outcomes.outcomes]
    assert max(tpot for tpot in tpots if tpot is not None) <= 0.04015 / slo._AIM


@given(
    prompts=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    budget=st.integers(4, 24),
    ttft=st.sampled_from((1.0, 200.0, 600_000.0)),
    tpot=st.sampled_from((1.0, 30.0, 600_000.0)),
    depth=st.sampled_from((1, 2)),
)
@settings(max_examples=60)
def test_decodes_run_in_every_step_and_all_end(
    prompts: list[int], budget: int, ttft: float, tpot: float, depth: int
) -> None:
    """Whatever the targets, those that no machine could meet among them."""
    engine = CoreHarness(
        policy="slo",
        num_blocks=256,
        max_num_seqs=4,
        max_num_batched_tokens=budget,
        ttft_target_ms=ttft,
        tpot_target_ms=tpot,
        depth=depth,
        prefix_caching=False,
    )
    for i, length in enumerate(prompts):
        engine.submit(f"r{i}", [i, *range(100, 100 + length)], 1 + i % 7)
        engine.step()
    engine.finish()
    outputs: dict[int, int] = {}
    for plan in engine.runner.plans:
        decoding = {seq for seq, count in outputs.items() if 0 < count < 1 + (seq - 1) % 7}
        assert decoding == {row.seq for row in plan.rows if not row.prefill}
        assert plan.num_tokens <= budget
        for row in plan.rows:
            outputs[row.seq] = outputs.get(row.seq, 0) + row.samples


@pytest.mark.parametrize("depth", [1, 2])
def test_a_pool_too_small_for_all(depth: int) -> None:
    """Preemption at every turn: all end, with the tokens they have alone."""
    engine = CoreHarness(policy="slo", num_blocks=12, max_num_seqs=6, depth=depth)
    rng = random.Random(depth)
    for i in range(30):
        engine.submit(f"r{i}", [i, *range(100, 100 + rng.randrange(1, 20))], rng.randrange(1, 20))
        engine.step()
    engine.finish()
    assert engine.snapshot().totals.preemptions > 5


def test_no_fixed_budget_has_as_many_requests_in_time() -> None:
    """Bursts at a rate that is just too much for this box. In virtual time, so the counts are exact
    and the same every time."""
    device = named_device("h100")
    config = envelope(device, SHAPE, max_model_len=2048, max_num_batched_tokens=8192)
    targets = {"ttft_target_ms": 500.0, "tpot_target_ms": 25.0}
    tasks = make_tasks(150, rate=75, prompt=(64, 1024), output=(1, 256), seed=100)

    def good(**knobs: object) -> int:
        stated = Knobs(max_num_seqs=256, **targets, **knobs)  # type: ignore[arg-type]
        engine = build(config, stated, SHAPE, Roofline(device, SHAPE))
        outcomes = Outcomes()
        simulate(engine, Tasks(tasks), outcomes)
        assert len(outcomes.timings) == len(tasks)
        return sum(
            (ttft or 0) <= 0.5 and (tpot or 0) <= 0.025 for ttft, tpot, _ in outcomes.timings
        )

    budgets = (256, 512, 1024, 2048, 8192)
    best = max(good(policy="stall_free", max_num_batched_tokens=budget) for budget in budgets)
    assert good(policy="slo", max_num_batched_tokens=8192) > best > 0


def test_what_is_swapped_is_part_of_a_steps_work() -> None:
    """Otherwise a step that copies much would teach that its tokens take long."""
    engine = CoreHarness(
        policy="slo", num_blocks=8, num_host_blocks=8, preemption="swap", prefix_caching=False
    )
    engine.submit("a", list(range(12)), 16)
    engine.submit("b", list(range(100, 112)), 16)
    works: list[tuple[StepPlan, int]] = []
    engine.step()
    policy = engine.scheduler.policy
    assert isinstance(policy, Slo)
    engine.runner.on_step = lambda plan: works.append((plan, policy._flights[0].work.moved))
    engine.finish()
    block = SCRIPTED.kv_bytes_per_token * 4
    for plan, moved in works:
        assert moved == block * (len(plan.swaps_out) + len(plan.swaps_in))
    assert sum(moved > 0 for _plan, moved in works) == 2
