"""What the simulator predicts beside what the engine then does, on loads it was not fitted to.

    python -m benchmarks.simulation [--model builtin|387m] [--rounds N] [--seed N]

Runs of the engine under `stall_free`, on Poisson arrivals, give step records, and a cost model is
fitted to them. Other loads (other lengths, arrivals and concurrency) run under other policies, on
the engine and in the simulator, with the same requests. Errors are relative to the real run. On the
engine all take turns, round by round, so that a machine whose speed drifts is the same to all;
percentiles are of all rounds' samples.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from dataclasses import dataclass, field

import torch

from app.bench.ending import EndingRunner
from app.bench.lengths import Exponential, Uniform
from app.bench.runs import Plan, Run, run_all
from app.bench.scripts import Synthetic
from app.bench.setting import Setting
from app.bench.testbed import Testbed, in_virtual_time
from benchmarks.smoke import load
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.drive import Clock, WallClock
from engine.knobs import Knobs
from engine.model.runner import TorchRunner
from engine.model.trace import trace
from engine.simulation.fitted import Fitted
from engine.simulation.records import Recording
from engine.snapshot import ModelCard
from engine.telemetry import StepRecord, percentile

MODEL_LENGTH = 1024
SLOTS = 32
BUDGET = 512
EOS = 0


@dataclass(slots=True)
class Total:
    """All rounds of a case, samples pooled; latencies in seconds."""

    seconds: float = 0.0
    requests: int = 0
    tokens: int = 0
    ttft: list[float] = field(default_factory=list)
    tpot: list[float] = field(default_factory=list)
    e2el: list[float] = field(default_factory=list)

    def add(self, one: Run) -> None:
        self.seconds += one.figures["duration"]
        self.requests += one.measured.completed
        self.tokens += one.measured.output_tokens
        self.ttft += one.measured.ttft
        self.tpot += one.measured.tpot
        self.e2el += one.measured.e2el

    @property
    def rows(self) -> dict[str, float]:
        """What is compared, by its label."""
        rows = {
            "request throughput (req/s)": self.requests / self.seconds,
            "output throughput (tok/s)": self.tokens / self.seconds,
        }
        for name, samples in (("TTFT", self.ttft), ("TPOT", self.tpot), ("E2EL", self.e2el)):
            ordered = sorted(samples)
            rows[f"{name} mean (ms)"] = 1e3 * statistics.fmean(ordered)
            for q in (0.5, 0.9, 0.99):
                rows[f"{name} p{100 * q:g} (ms)"] = 1e3 * percentile(ordered, q)
        return rows


@dataclass(frozen=True, slots=True)
class Case:
    """A load under a policy."""

    load: Synthetic
    knobs: Knobs
    concurrency: int | None = None

    def __str__(self) -> str:
        """One round of it."""
        load = self.load
        comes = (
            f"{self.concurrency} at a time"
            if self.concurrency
            else f"{load.request_rate:g} requests/s, burstiness {load.burstiness:g}"
        )
        return (
            f"{self.knobs.policy}: {load.num_prompts} requests, {comes}, "
            f"{load.input_len} tokens in, {load.output_len} out, "
            f"{self.knobs.max_num_seqs} sequences at most"
        )


def knobs(policy: str, max_num_seqs: int = SLOTS) -> Knobs:
    return Knobs(
        policy=policy,
        max_num_seqs=max_num_seqs,
        static_batch_size=max_num_seqs,
        max_num_batched_tokens=BUDGET,
        queue_limit=100_000,
    )


@dataclass(frozen=True, slots=True)
class Study:
    """The load that is learned from, and those that are predicted."""

    learned: Case
    predicted: tuple[Case, ...]


# Sized so that three rounds take two minutes on two cores.
STUDIES = {
    "builtin": Study(
        Case(
            Synthetic(
                num_prompts=100,
                input_len=Uniform(16, 256),
                output_len=Exponential(48, 160),
                request_rate=14,
            ),
            knobs("stall_free"),
        ),
        (
            Case(
                Synthetic(
                    num_prompts=80,
                    input_len=Exponential(160, 512),
                    output_len=Uniform(16, 128),
                ),
                knobs("prefill_first"),
                concurrency=24,
            ),
            Case(
                Synthetic(
                    num_prompts=60,
                    input_len=Uniform(64, 320),
                    output_len=Exponential(64, 256),
                    request_rate=8,
                    burstiness=0.5,
                ),
                knobs("orca", 16),
            ),
            Case(
                Synthetic(
                    num_prompts=48,
                    input_len=Uniform(32, 128),
                    output_len=Exponential(48, 128),
                ),
                knobs("static", 12),
                concurrency=36,
            ),
        ),
    ),
    "387m": Study(
        Case(
            Synthetic(
                num_prompts=20,
                input_len=Uniform(16, 160),
                output_len=Exponential(32, 96),
                request_rate=1.5,
            ),
            knobs("stall_free"),
        ),
        (
            Case(
                Synthetic(
                    num_prompts=24,
                    input_len=Exponential(96, 320),
                    output_len=Uniform(8, 48),
                ),
                knobs("prefill_first"),
                concurrency=16,
            ),
            Case(
                Synthetic(
                    num_prompts=16,
                    input_len=Uniform(32, 192),
                    output_len=Exponential(32, 96),
                    request_rate=1.2,
                    burstiness=0.5,
                ),
                knobs("orca", 12),
            ),
        ),
    ),
}


def real(model_name: str) -> Testbed:
    """The engine on this machine, in real time."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = load(model_name, device)
    config = EngineConfig(
        num_blocks=SLOTS * MODEL_LENGTH // 16,
        max_model_len=MODEL_LENGTH,
        max_num_seqs=SLOTS,
        max_num_batched_tokens=BUDGET,
        dtype="bfloat16",
        device=str(device),
    )
    shape = trace(type(model), model.config, torch.bfloat16).shape
    runner = EndingRunner(TorchRunner(model, config, shape), EOS)
    card = ModelCard(model_name, "", 0, "bfloat16", str(device), "torch", MODEL_LENGTH, 0, 0)

    def make(knobs: Knobs) -> tuple[EngineCore, Clock]:
        clock = WallClock()
        core = EngineCore(
            config=config,
            runner=runner,
            shape=shape,
            card=card,
            key=model_name,
            eos_token_ids=frozenset({EOS}),
            knobs=knobs,
            clock=clock,
        )
        return core, clock

    return Testbed(
        config=config,
        shape=shape,
        knobs=Knobs(),
        make=make,
        encode=None,
        about={},
        virtual=False,
    )


def run(case: Case, testbed: Testbed, seed: int, records: list[StepRecord] | None = None) -> Run:
    """One round; its step records are appended to `records`."""
    plan = Plan(
        load=case.load,
        settings=[(Setting(case.knobs.policy, {}), case.knobs)],
        concurrency=case.concurrency,
        seed=seed,
        warmups=8,
    )
    (one,) = run_all(plan, testbed, on_record=None if records is None else records.append)
    assert one.measured.completed == case.load.num_requests, one.measured.errors
    return one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(STUDIES), default="builtin")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    study = STUDIES[options.model]
    testbed = real(options.model)
    print(
        f"{options.model} in bfloat16 on {testbed.config.device} {platform.machine()}, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}, budget {BUDGET} tokens, "
        f"{options.rounds} rounds"
    )
    seeds = range(options.seed, options.seed + options.rounds)
    records: list[StepRecord] = []
    measured = [Total() for _ in study.predicted]
    for seed in seeds:
        run(study.learned, testbed, seed, records)
        for case, total in zip(study.predicted, measured, strict=True):
            # Other requests than those learned from.
            total.add(run(case, testbed, seed + 1000))
    cost = Fitted.to(Recording(testbed.shape, records))
    print(
        f"\nlearned from {study.learned}: {len(records)} steps; on {cost.error.steps} held out the "
        f"fit is off by {cost.error.median:.1%} (median), {cost.error.p90:.1%} (p90)"
    )
    virtual = in_virtual_time(testbed.config, testbed.shape, cost, {})
    for case, real_total in zip(study.predicted, measured, strict=True):
        start = time.perf_counter()
        predicted = Total()
        for seed in seeds:
            predicted.add(run(case, virtual, seed + 1000))
        seconds = time.perf_counter() - start
        print(f"\n{case}; simulated in {seconds:.2f} s, ran {real_total.seconds:.1f} s")
        print(f"{'':28} {'predicted':>10} {'real':>10} {'error':>8}")
        for label, value in predicted.rows.items():
            truth = real_total.rows[label]
            print(f"{label:28} {value:10.2f} {truth:10.2f} {value / truth - 1:+8.1%}")


if __name__ == "__main__":
    main()
