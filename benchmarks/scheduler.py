"""How long plan and commit take, by the numbers of running and of waiting requests.

    python -m benchmarks.scheduler [--running 32,256] [--waiting 0,100,10000] [--model 387m]

A core steps over a runner that computes nothing. Every sequence decodes in every step, and the
queue behind them stands still. Then, unless `--model none` is given, plan and commit are compared
with a real model's step at 32 sequences.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from app.process.columns import row
from benchmarks.heading import heading
from engine.api.client import Submission
from engine.api.config import BLOCK_SIZE, EngineConfig
from engine.api.knobs import Knobs
from engine.api.origin import Origin
from engine.api.sampling import SamplingParams
from engine.api.status import ModelCard
from engine.batch.plan import StepPlan, StepResult
from engine.core.core import EngineCore
from engine.scheduling.policies import policy_names
from engine.simulation.shapes import SHAPES

PROMPT_TOKENS = 128
STEPS = 300
WARM_UP = 20
HEAD = ("policy", "order", "running", "waiting", "plan", "commit", "both", "step")
WIDTHS = (-14, -9, 7, 7, 7, 7, 7, 7)


class NullRunner:
    """Computes nothing: it gives token 1 at once for every row that samples."""

    depth = 1

    def start_step(self, plan: StepPlan) -> StepPlan:
        return plan

    def result(self, handle: object) -> StepResult:
        assert isinstance(handle, StepPlan)
        return StepResult((1,) * sum(row.samples for row in handle.rows))


def make_core(running: int, waiting: int, policy: str, order: str) -> EngineCore:
    """A core with `running` sequences that decode and `waiting` behind them."""
    length = PROMPT_TOKENS + 4 * STEPS
    config = EngineConfig(
        num_blocks=running * -(-length // BLOCK_SIZE) + 64,
        max_model_len=length,
        max_num_seqs=running,
        max_num_batched_tokens=running * PROMPT_TOKENS,
    )
    core = EngineCore(
        config=config,
        runner=NullRunner(),
        shape=SHAPES["387m"],
        card=ModelCard("null", "", 0, "bfloat16", "cpu", "none", length, 0, 0),
        key="null",
        eos_token_ids=frozenset(),
        knobs=Knobs(
            policy=policy,
            order=order,
            max_num_seqs=running,
            max_num_batched_tokens=running * PROMPT_TOKENS,
            static_batch_size=running,
            queue_limit=1_000_000,
            watermark=0.0,
            waiting_served_ratio=10.0,
            max_waiting_tokens=10_000,
        ),
        clock=time.perf_counter,
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=4 * STEPS)
    for i in range(running + waiting):
        core.add_request(
            # Each request is of another user, which is the most expensive case of a fair order.
            Submission(request_id=str(i), origin=Origin(user=str(i))),
            [i % 30_000, *range(1, PROMPT_TOKENS)],
            sampling,
        )
    return core


@contextmanager
def no_collection() -> Iterator[None]:
    """Switch the garbage collector off for a block. To walk tens of thousands of waiting requests
    is the interpreter's work and not a step's."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def measure(running: int, waiting: int, policy: str, order: str) -> tuple[float, float, float]:
    """Median seconds of the plan, of the commit, and of the whole step, which computes nothing."""
    core = make_core(running, waiting, policy, order)
    with no_collection():
        for _ in range(WARM_UP):
            core.step()
        first, wholes = core.records.total, []
        for _ in range(STEPS):
            start = time.perf_counter()
            core.step()
            wholes.append(time.perf_counter() - start)
    records = core.records.since(first)
    assert all(record.decode_rows == running for record in records)
    assert records[-1].waiting == waiting
    return median([r.plan for r in records]), median([r.commit for r in records]), median(wholes)


def measure_model(name: str) -> None:
    """Print the shares of plan and commit in a real model's step, at 32 sequences."""
    import torch

    from benchmarks.smoke import Engine, load, make_prompts

    device = torch.device("cpu")
    engine = Engine(load(name, device), 32, device)
    engine.run(make_prompts(engine.shape.vocab_size, 32, -1))
    steps = engine.run(make_prompts(engine.shape.vocab_size, 32, 0)).steps
    decodes = [step for step in steps if step.decode_rows == 32]
    cost = median([step.plan + step.commit for step in decodes])
    whole = median([step.duration for step in decodes])
    print(
        f"\n{name}, 32 sequences: plan + commit {1e3 * cost:.2f} ms of a step of "
        f"{1e3 * whole:.1f} ms, {cost / whole:.2%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--running", default="32,256")
    parser.add_argument("--waiting", default="0,100,1000,10000,100000")
    parser.add_argument("--orders", default="priority,fair")
    parser.add_argument("--model", default="387m")
    options = parser.parse_args()
    print(heading())
    print("median milliseconds of a step in which every sequence decodes")
    print(row(HEAD, WIDTHS))
    for running in map(int, options.running.split(",")):
        for waiting in map(int, options.waiting.split(",")):
            for policy in policy_names() if waiting == 10_000 else policy_names()[:1]:
                for order in options.orders.split(","):
                    plan, commit, whole = measure(running, waiting, policy, order)
                    times = (f"{1e3 * t:.3f}" for t in (plan, commit, plan + commit, whole))
                    cells = (policy, order, str(running), str(waiting), *times)
                    print(row(cells, WIDTHS), flush=True)
    if options.model != "none":
        measure_model(options.model)


if __name__ == "__main__":
    main()
