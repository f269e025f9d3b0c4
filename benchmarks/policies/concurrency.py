"""Part C: throughput against concurrency, and arithmetic intensity by batch."""

from __future__ import annotations

from itertools import pairwise

from app.bench.lengths import Exponential, Fixed
from app.bench.plots import Chart, Line
from app.bench.scripts import Synthetic
from benchmarks.policies.burst import MEAN, PROMPT, original_box
from benchmarks.policies.contenders import POLICIES, Box, Result, measure
from benchmarks.policies.tables import count, ratio, say, table, title
from engine.batch.plan import Row

CAP = 512
CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BATCHES = (*CONCURRENCIES, 512)
LEAST_REQUESTS = 48
ROUNDS = 6


def run(seed: int) -> dict[str, Chart]:
    small = original_box()
    large = Box.of("h100:llama-8b", max_model_len=2048)
    title("C. Throughput against concurrency, simulated; arithmetic intensity")
    return {f"concurrency-{box.device.name}": _throughput(box, seed) for box in (small, large)} | {
        f"intensity-{box.device.name}": _intensity(box) for box in (small, large)
    }


def workload(concurrency: int) -> Synthetic:
    """Enough requests for each place to be filled `ROUNDS` times."""
    return Synthetic(
        num_prompts=max(LEAST_REQUESTS, ROUNDS * concurrency),
        input_len=Fixed(PROMPT),
        output_len=Exponential(MEAN, CAP),
    )


def steady_throughput(result: Result) -> float:
    """Output tokens a second over the middle half of a run."""
    output, seconds = result.measured.output, result.seconds
    tokens = sum(
        amount
        for moment, amount in zip(output.middles, output.sums, strict=True)
        if seconds / 4 < moment <= 3 * seconds / 4
    )
    return tokens / (seconds / 2)


def _throughput(box: Box, seed: int) -> Chart:
    found = {
        policy: [
            steady_throughput(
                measure(policy, box.testbed(policy), workload(n), seed=seed, concurrency=n)
            )
            for n in CONCURRENCIES
        ]
        for policy in POLICIES
    }
    slots = box.config.num_slots
    table(
        f"Closed loop on {box.name}, {slots:,} token slots: output tok/s with so many requests at "
        f"a time, {PROMPT} tokens in, {workload(1).output_len} out; over the middle half of each "
        "run, where neither filling nor draining counts",
        ["policy", *map(str, CONCURRENCIES)],
        [[policy, *map(count, its)] for policy, its in found.items()],
    )
    doublings = " ".join(ratio(after / before) for before, after in pairwise(found["stall_free"]))
    say(
        f"stall_free, by each doubling: {doublings}. {slots:,} slots hold "
        f"{slots // (PROMPT + MEAN)} sequences of {PROMPT + MEAN} tokens."
    )
    return Chart(
        f"Output throughput by concurrency: {box.name} (simulated)",
        "requests at a time",
        "output tok/s",
        tuple(Line(policy, CONCURRENCIES, its) for policy, its in found.items()),
        log_x=True,
        log_y=True,
        points=True,
    )


def decode_intensity(box: Box, batch: int, context: int) -> float:
    """FLOPs a byte of a step in which `batch` sequences decode, each seeing `context` tokens."""
    work = box.shape.cost([Row(0, context - 1, 1, (), True, False)] * batch)
    return work.flops / work.bytes


def prefill_intensity(box: Box, batch: int, prompt: int) -> float:
    """FLOPs a byte of a step that computes `batch` prompts."""
    work = box.shape.cost([Row(0, 0, prompt, (), True, True)] * batch)
    return work.flops / work.bytes


def ridge(box: Box) -> float:
    """FLOPs a byte at which the device's arithmetic and its memory take as long (Williams,
    Waterman, Patterson, "Roofline", CACM 2009, section 3), by its data sheet."""
    return box.device.peak_flops / box.device.peak_bandwidth


def _intensity(box: Box) -> Chart:
    context = PROMPT + MEAN
    alone = [decode_intensity(box, batch, 1) for batch in BATCHES]
    decode = [decode_intensity(box, batch, context) for batch in BATCHES]
    prefill = [prefill_intensity(box, batch, PROMPT) for batch in BATCHES]
    table(
        f"FLOPs a byte on {box.name} by sequences in the step; the ridge is at {ridge(box):.0f}",
        ["", *map(str, BATCHES)],
        [
            ["decode, matrices alone", *(f"{value:.1f}" for value in alone)],
            [f"decode at {context} tokens", *(f"{value:.1f}" for value in decode)],
            [f"prefill of {PROMPT} tokens", *(f"{value:.0f}" for value in prefill)],
        ],
    )
    crossing = next(
        batch for batch in range(1, 10_000) if decode_intensity(box, batch, 1) >= ridge(box)
    )
    reached = decode_intensity(box, 10_000, context)
    say(
        f"A prompt of {PROMPT} tokens alone is {'above' if prefill[0] > ridge(box) else 'below'} "
        f"the ridge. Decodes' matrices come to it at {crossing} sequences (the texts: near 256); "
        f"with the keys and values of {context} tokens each, which no batch shares, 10,000 "
        f"sequences have {reached:.0f}."
    )
    return Chart(
        f"Arithmetic intensity: {box.name}",
        "sequences in a step",
        "FLOPs a byte",
        (
            Line("prefill", BATCHES, prefill),
            Line("decode, matrices alone", BATCHES, alone),
            Line(f"decode at {context} tokens", BATCHES, decode),
            Line("ridge", BATCHES, [ridge(box)] * len(BATCHES)),
        ),
        log_x=True,
        log_y=True,
    )
