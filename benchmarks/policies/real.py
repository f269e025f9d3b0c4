"""Part E: the burst scaled down, on a model loaded here, beside transformers' `generate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch
import transformers

from app.bench.lengths import Exponential, Uniform
from app.bench.plots import Chart, Line
from app.bench.scripts import Synthetic
from benchmarks.policies.contenders import POLICIES, Result, largest_batch, measure
from benchmarks.policies.generate import Generated, generate, without_eos
from benchmarks.policies.replay import BATCH as NAIVE_BATCH
from benchmarks.policies.replay import CAP, PUBLISHED
from benchmarks.policies.tables import count, percent, ratio, say, table, title
from benchmarks.smoke import device_name
from benchmarks.smoke import load as load_model
from benchmarks.testbed import on_this_machine
from engine.api.config import BLOCK_SIZE, EngineConfig

# `generate` as the naive baseline of Anyscale (2023) ran it: batches of 4, each to the longest
# output of all requests.
NAIVE = "naive static"
BASELINE = "generate"
SYSTEMS = (NAIVE, BASELINE, *POLICIES)
PROMPTS = Uniform(32, 96)
MEAN = 32
CAPS = (8, 32, 128, 384)
MODEL_LENGTH = PROMPTS.most + max(CAPS)
# As many of the longest sequences as the original pool holds.
SLOTS = 7 * MODEL_LENGTH
MAX_SEQS = 64
CHUNK_BUDGET = 512
REQUESTS = {"builtin": 96, "387m": 32}

_HEADS = (
    "system",
    "output tok/s",
    "lowest",
    "highest",
    f"of {NAIVE}",
    f"of {BASELINE}",
    "of static",
    "KV waste",
    "padded",
    "bubbles",
    "batch",
    "steps",
)


@dataclass(frozen=True, slots=True)
class Sample:
    """The result of one system in one round. Shares are those of part A.

    Attributes:
        waste: None where it is not known.
    """

    throughput: float
    padded: float
    bubbles: float
    waste: float | None
    steps: float
    batch: float

    @staticmethod
    def of_result(result: Result) -> Sample:
        figures = result.figures
        return Sample(
            result.output_throughput,
            figures["padding"] / 100,
            result.bubbles,
            figures["kv_waste"] / 100,
            result.steps,
            figures["mean_batch"],
        )

    @staticmethod
    def of_generated(generated: Generated) -> Sample:
        return Sample(
            generated.output_throughput,
            generated.padded,
            generated.bubbles,
            None,
            generated.steps,
            generated.output_tokens / generated.steps,
        )


Samples = Mapping[str, list[Sample]]


def workload(cap: int, requests: int) -> Synthetic:
    """Requests that all come at once. Each announces the cap."""
    return Synthetic(num_prompts=requests, input_len=PROMPTS, output_len=Exponential(MEAN, cap))


def envelope(device: torch.device) -> EngineConfig:
    return EngineConfig(
        num_blocks=SLOTS // BLOCK_SIZE,
        max_model_len=MODEL_LENGTH,
        max_num_seqs=MAX_SEQS,
        max_num_batched_tokens=MAX_SEQS * PROMPTS.most,
        dtype="bfloat16",
        device=str(device),
    )


def run(model_name: str, rounds: int, seed: int) -> dict[str, Chart]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = envelope(device)
    testbed = on_this_machine(model_name, config)
    peer = without_eos(load_model(model_name, device))
    requests = REQUESTS[model_name]
    _introduce(model_name, device_name(device), requests, rounds)

    def take_turns(cap: int, round_seed: int) -> dict[str, Sample]:
        burst = workload(cap, requests)
        scripts = burst.scripts(testbed.shape.vocab_size, round_seed)
        batch = largest_batch(config, burst.most_tokens)
        tasks = [script.first for script in scripts]
        naive = generate(peer, tasks, NAIVE_BATCH, to_longest=True)
        generated = generate(peer, tasks, batch)
        assert naive.output_tokens == generated.output_tokens
        samples = {
            NAIVE: Sample.of_generated(naive),
            BASELINE: Sample.of_generated(generated),
        }
        for policy in POLICIES:
            result = measure(policy, testbed, burst, seed=round_seed, chunk_budget=CHUNK_BUDGET)
            # The same work, or the rates cannot be compared.
            assert result.figures["total_output_tokens"] == generated.output_tokens
            samples[policy] = Sample.of_result(result)
        return samples

    take_turns(min(CAPS), seed + rounds)  # warms up
    results: dict[int, Samples] = {cap: {system: [] for system in SYSTEMS} for cap in CAPS}
    for round_ in range(rounds):
        for cap, its in results.items():
            for system, sample in take_turns(cap, seed + round_).items():
                its[system].append(sample)
    for cap, its in results.items():
        batch = largest_batch(config, workload(cap, requests).most_tokens)
        table(
            f"cap {cap}: batches of {batch} under {BASELINE}, static and dynamic",
            _HEADS,
            [_row(system, its) for system in SYSTEMS],
        )
    _explain(results)
    return {
        "real": Chart(
            f"A burst of {requests} requests on this machine, {model_name}",
            "cap on output tokens, as announced",
            "output tok/s",
            tuple(
                Line(system, CAPS, [_throughput(results[cap][system]) for cap in CAPS])
                for system in SYSTEMS
            ),
            log_x=True,
            points=True,
        )
    }


def _introduce(model_name: str, where: str, requests: int, rounds: int) -> None:
    title(f"E. The burst scaled down, real: {model_name} on {where}, {SLOTS:,} token slots")
    say(
        f"{requests} requests at once, {PROMPTS} tokens in, outputs exponential of mean {MEAN} "
        f"cut at a cap, which is what they announce; greedy, bfloat16, {torch.get_num_threads()} "
        f"threads, torch {torch.__version__}. {BASELINE}: transformers {transformers.__version__}, "
        "batches in the order of arrival, padded on the left, each until its longest row has "
        f"ended. {NAIVE}: the same in batches of {NAIVE_BATCH}, each to the longest output of "
        "all, as the baseline of the published 23x. All take turns on the same requests; medians "
        f"of {rounds} rounds, each with "
        "requests of its own. This engine counts padding and bubbles of static and dynamic, and "
        "does not compute them."
    )


def _throughput(samples: Sequence[Sample]) -> float:
    return median(sample.throughput for sample in samples)


def _over(system: str, other: str, its: Samples) -> float:
    """Median of the ratios of the rounds."""
    pairs = zip(its[system], its[other], strict=True)
    return median(ours.throughput / theirs.throughput for ours, theirs in pairs)


def _row(system: str, its: Samples) -> list[str]:
    samples = its[system]
    rates = [sample.throughput for sample in samples]
    wastes = [sample.waste for sample in samples if sample.waste is not None]
    return [
        system,
        f"{median(rates):.1f}",
        f"{min(rates):.1f}",
        f"{max(rates):.1f}",
        ratio(_over(system, NAIVE, its)),
        ratio(_over(system, BASELINE, its)),
        ratio(_over(system, "static", its)),
        percent(median(wastes)) if wastes else "-",
        percent(median(sample.padded for sample in samples)),
        percent(median(sample.bubbles for sample in samples)),
        f"{median(sample.batch for sample in samples):.1f}",
        count(median(sample.steps for sample in samples)),
    ]


def _explain(results: Mapping[int, Samples]) -> None:
    low, high = min(CAPS), max(CAPS)
    says = [
        f"at cap {cap} stall_free has {ratio(_over('stall_free', BASELINE, results[cap]))} of "
        f"{BASELINE} and {ratio(_over('stall_free', 'static', results[cap]))} of static"
        for cap in (low, high)
    ]
    say(f"{says[0][0].upper()}{says[0][1:]}, {says[1]}.")
    naive = [f"{system} {ratio(_over(system, NAIVE, results[high]))}" for system in PUBLISHED]
    published = [f"{times:g}x" for times in PUBLISHED.values()]
    say(
        f"Over {NAIVE} at cap {high}: {', '.join(naive)}; published at cap {CAP}: "
        f"{', '.join(published)}, with prompts counted among the tokens."
    )
    say(
        f"Of static, which leaves its padding and bubbles out here, the ratio is scheduling alone; "
        f"of {BASELINE} it is also what {BASELINE} computes for nothing, and another "
        f"implementation: static has {ratio(_over('static', BASELINE, results[high]))} of it at "
        f"cap {high}."
    )
