"""Goodput of `slo` beside `stall_free` at every fixed setting, simulated.

    python -m benchmarks.slo [--requests N] [--order shortest] [--tuning]

Goodput is the number of requests that meet both targets over the seconds in which requests come,
which are the same for all settings. It is the mean over the seeds. `best` is the fixed setting that
is best for the workload, chosen after the fact. All of it takes about four minutes on one core.

`max_partial_prefills` is not among the settings: without a chunk cap `stall_free` gives one prompt
after the other all that a step has left, so that at most one stays partly computed in any case.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from app.bench.lengths import Exponential, Lengths, Uniform
from app.bench.runs import Plan, run_all
from app.bench.scripts import Synthetic
from app.bench.setting import Setting
from app.bench.testbed import Testbed, in_virtual_time
from app.process.columns import row
from benchmarks.heading import heading
from engine.api.knob_spec import KnobValue
from engine.simulation.cost import Roofline
from engine.simulation.devices import named_device
from engine.simulation.shapes import named_shape
from engine.simulation.simulation import envelope

# The constants of the policy were chosen on seeds below 12, with looks at 100 to 102 in between.
# The seeds that are reported ran only once, after the last change.
TUNING_SEEDS = (0, 1, 2)
SEEDS = (200, 201, 202)
REQUESTS = 300
MOST_TOKENS = 8192
SLOTS = 256


@dataclass(frozen=True, slots=True)
class Mixture:
    """Lengths drawn from `rare` with probability `share`, else from `usual`."""

    usual: Lengths
    rare: Lengths
    share: float

    @property
    def most(self) -> int:
        return max(self.usual.most, self.rare.most)

    def sample(self, rng: np.random.Generator) -> int:
        return (self.rare if rng.random() < self.share else self.usual).sample(rng)

    def __str__(self) -> str:
        return f"{self.usual} and {self.share:.0%} {self.rare}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A device with a model, the targets, and rates that rise beyond what it can serve.

    The TPOT target is about three times a decode step of one sequence. An OPT-13B on 40 GB is short
    of memory (15,792 token slots); the others are short of arithmetic.
    """

    device: str
    model: str
    max_model_len: int
    ttft_ms: float
    tpot_ms: float
    rates: tuple[float, ...]
    mixed: Lengths

    def testbed(self) -> Testbed:
        device, shape = named_device(self.device), named_shape(self.model)
        config = envelope(
            device,
            shape,
            max_model_len=self.max_model_len,
            max_num_seqs=SLOTS,
            max_num_batched_tokens=MOST_TOKENS,
        )
        return in_virtual_time(config, shape, Roofline(device, shape), {})

    def workloads(self, requests: int) -> dict[str, Synthetic]:
        """Workloads by name: Poisson arrivals, the same in bursts, and long prompts among short
        ones."""
        lengths: dict[str, tuple[Lengths, float]] = {
            "steady": (Uniform(64, 1024), 1.0),
            "bursty": (Uniform(64, 1024), 0.1),
            "mixed": (self.mixed, 1.0),
        }
        return {
            f"{name} {rate:g}/s": Synthetic(
                num_prompts=requests,
                input_len=input_len,
                output_len=Exponential(128, 512),
                request_rate=rate,
                burstiness=burstiness,
            )
            for name, (input_len, burstiness) in lengths.items()
            for rate in self.rates
        }


_LONG = Mixture(Uniform(32, 512), Uniform(2048, 6144), 0.1)
BOXES = (
    Box(
        device="h100",
        model="llama-8b",
        max_model_len=8192,
        ttft_ms=500,
        tpot_ms=25,
        rates=(40, 60, 80),
        mixed=_LONG,
    ),
    Box(
        device="a100-40gb",
        model="opt-13b",
        max_model_len=2048,
        ttft_ms=2000,
        tpot_ms=60,
        rates=(4, 5, 6),
        mixed=Mixture(Uniform(32, 512), Uniform(1024, 1536), 0.15),
    ),
    Box(
        device="l4",
        model="qwen-0.5b",
        max_model_len=8192,
        ttft_ms=300,
        tpot_ms=15,
        rates=(50, 80, 110),
        mixed=_LONG,
    ),
)

# Token budgets and prefill chunks. A budget below the number of slots needs fewer slots.
FIXED = (
    *((budget, 0) for budget in (128, 192, 256, 512, 1024, 2048, 4096)),
    (1024, 256),
    (2048, 512),
)
WIDTHS = (-14, *(9,) * (len(FIXED) + 3))


def fixed(budget: int, chunk: int, order: str) -> dict[str, KnobValue]:
    return {
        "policy": "stall_free",
        "max_num_batched_tokens": budget,
        "max_num_seqs": min(budget, SLOTS),
        "prefill_chunk": chunk,
        "order": order,
    }


def goodput(
    testbed: Testbed,
    box: Box,
    workload: Synthetic,
    changes: Mapping[str, KnobValue],
    seeds: Sequence[int],
) -> float:
    """Requests a second that meet both targets, as the mean over the seeds."""
    targets = {"ttft": box.ttft_ms, "tpot": box.tpot_ms}
    aims = {f"{name}_target_ms": limit for name, limit in targets.items()}
    knobs = testbed.with_knobs({"max_num_seqs": SLOTS, **aims, **changes})
    found = []
    for seed in seeds:
        plan = Plan(
            workload=workload, settings=[(Setting("", {}), knobs)], targets=targets, seed=seed
        )
        (run,) = run_all(plan, testbed)
        measured = run.measured
        assert measured.completed == workload.num_requests, measured.errors
        found.append(measured.good / max(measured.arrived))
    return sum(found) / len(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument(
        "--order", choices=("priority", "shortest"), default="priority", help="of stall_free"
    )
    parser.add_argument("--tuning", action="store_true", help="the seeds of the tuning")
    options = parser.parse_args()
    seeds = TUNING_SEEDS if options.tuning else SEEDS
    print(heading("simulated"))
    names = [f"{budget}" + (f"/{chunk}" if chunk else "") for budget, chunk in FIXED]
    print(
        f"goodput in requests/s, {options.requests} requests a run, seeds {seeds}; stall_free in "
        f"order {options.order} by max_num_batched_tokens/prefill_chunk; slo at {MOST_TOKENS}"
    )
    table: list[list[float]] = []
    for box in BOXES:
        testbed = box.testbed()
        print(
            f"\n{box.model} on {box.device}, TTFT {box.ttft_ms:g} ms, TPOT {box.tpot_ms:g} ms; "
            f"mixed is {box.mixed} tokens in"
        )
        print(row(("workload", *names, "best", "slo", "ratio"), WIDTHS))
        for name, workload in box.workloads(options.requests).items():
            settings = [fixed(budget, chunk, options.order) for budget, chunk in FIXED]
            settings.append({"policy": "slo", "max_num_batched_tokens": MOST_TOKENS})
            found = [goodput(testbed, box, workload, setting, seeds) for setting in settings]
            table.append(found)
            *others, slo = found
            best = max(others)
            figures = (f"{figure:.3f}" for figure in (*others, best, slo, slo / best))
            print(row((name, *figures), WIDTHS), flush=True)
    _compare(names, table)


def _compare(names: Sequence[str], table: Sequence[Sequence[float]]) -> None:
    """Compare each setting, kept for all workloads, with `slo` and with the best for each."""
    best = [max(found[:-1]) for found in table]
    below = sum(found[-1] < top for found, top in zip(table, best, strict=True))
    print(f"\n{len(table)} workloads; slo is below the best fixed setting on {below}")
    print("goodput over that of the best fixed setting for each workload:")
    print(row(("", "geomean", "mean", "least"), WIDTHS))
    for number, name in enumerate([*names, "slo"]):
        ratios = [found[number] / top for found, top in zip(table, best, strict=True)]
        # A setting that serves nobody in time on some workload has a geometric mean of 0.
        mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if min(ratios) > 0 else 0.0
        figures = (mean, sum(ratios) / len(ratios), min(ratios))
        print(row((name, *(f"{figure:.3f}" for figure in figures)), WIDTHS))


if __name__ == "__main__":
    main()
