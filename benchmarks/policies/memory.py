"""Part D: KV slots that are given and not used, and what forks share."""

from __future__ import annotations

from dataclasses import dataclass

from app.bench.lengths import Exponential, Uniform
from app.bench.plots import Chart, Line
from app.bench.scripts import Synthetic
from benchmarks.policies.burst import SLOTS, original_box
from benchmarks.policies.contenders import Box, knobs_of, measure
from benchmarks.policies.tables import count, percent, say, table, title
from engine.api.client import Submission
from engine.api.sampling import SamplingParams
from engine.simulation.cost import Roofline
from engine.simulation.simulation import build

COMPARED = ("static", "orca", "prefill_first", "stall_free")
MEANS = (150, 320, 600, 1200)
REQUESTS = 300
LIMIT = 0.04
FROM_MEAN = 300
SAMPLES, SAMPLED_PROMPT, SAMPLED_OUTPUT = 8, 500, 100


def workload(mean: int) -> Synthetic:
    """Half prompt, half output; outputs are announced as four times their mean."""
    half = mean // 2
    return Synthetic(
        num_prompts=REQUESTS,
        input_len=Uniform(half // 2, half + half // 2),
        output_len=Exponential(half, min(4 * half, 2048 - half - half // 2)),
    )


def run(seed: int) -> dict[str, Chart]:
    box = original_box()
    title(f"D. KV slots given and not used, simulated: {box.name}, {SLOTS:,} token slots")
    results = {
        mean: {p: measure(p, box.testbed(p), workload(mean), seed=seed) for p in COMPARED}
        for mean in MEANS
    }
    lengths = {}
    for mean, its in results.items():
        figures = its["static"].figures
        tokens = figures["total_input_tokens"] + figures["total_output_tokens"]
        lengths[mean] = tokens / REQUESTS
    wastes = {
        policy: [results[mean][policy].figures["kv_waste"] / 100 for mean in MEANS]
        for policy in COMPARED
    }
    table(
        f"A burst of {REQUESTS} requests, half prompt and half output: token slots given that hold "
        "no token anybody still needs, over all given, weighted by time, by the mean tokens of a "
        "sequence when it ends",
        ["policy", *(f"{lengths[mean]:.0f}" for mean in MEANS)],
        [[policy, *map(percent, wastes[policy])] for policy in COMPARED],
    )
    long = [
        waste
        for mean, waste in zip(MEANS, wastes["stall_free"], strict=True)
        if lengths[mean] >= FROM_MEAN
    ]
    verdict = "under" if max(long) < LIMIT else "NOT under"
    used = [1 - waste for policy in ("static", "orca") for waste in wastes[policy]]
    say(
        f"From a mean of {FROM_MEAN} tokens on stall_free wastes at most {percent(max(long))}: "
        f"{verdict} {percent(LIMIT)}. What reserves uses {percent(min(used))} to "
        f"{percent(max(used))} of what it takes (published: under 4 % wasted by vLLM, 20.4 to "
        "38.2 % used by systems before it)."
    )
    _sharing(box)
    return {
        "kv-waste": Chart(
            "KV slots given and not used: OPT-13B on A100-40GB (simulated)",
            "mean tokens of a sequence",
            "% of the slots given",
            tuple(Line(p, list(lengths.values()), [100 * w for w in wastes[p]]) for p in COMPARED),
            log_x=True,
            points=True,
        )
    }


@dataclass(frozen=True, slots=True)
class Sampled:
    """Several outputs of one prompt.

    Attributes:
        blocks: the most blocks that were used at once.
        tokens: how many tokens were computed.
    """

    blocks: int
    tokens: int


def sample(box: Box, samples: int, prompt: int, output: int, *, fork: bool) -> Sampled:
    """Compute outputs of one prompt, as forks of the first or each for itself."""
    knobs = knobs_of("stall_free", box.config, prompt + output, 2048)
    core = build(box.config, knobs, box.shape, Roofline(box.device, box.shape)).core
    sampling = SamplingParams(min_tokens=output, max_tokens=output)
    for number in range(samples):
        source = "0" if fork and number else None
        submission = Submission(request_id=str(number), fork_of=source)
        core.add_request(submission, list(range(prompt)), sampling)
    blocks = tokens = ended = 0
    while not core.idle:
        done = core.records.total
        ended += sum(output.end is not None for output in core.step())
        for record in core.records.since(done):
            blocks = max(blocks, record.used_blocks)
            tokens += record.num_tokens
    assert ended == samples
    return Sampled(blocks, tokens)


def _sharing(box: Box) -> None:
    alone, forked = (
        sample(box, SAMPLES, SAMPLED_PROMPT, SAMPLED_OUTPUT, fork=fork) for fork in (False, True)
    )
    table(
        f"{SAMPLES} samples of one prompt of {SAMPLED_PROMPT} tokens, {SAMPLED_OUTPUT} tokens "
        "each, stall_free, prefix caching off",
        ["", "blocks at most", "tokens computed"],
        [
            ["each for itself", count(alone.blocks), count(alone.tokens)],
            ["forks of the first", count(forked.blocks), count(forked.tokens)],
        ],
    )
    say(
        f"Forks use {percent(1 - forked.blocks / alone.blocks)} fewer blocks and compute "
        f"{percent(1 - forked.tokens / alone.tokens)} fewer tokens: the prompt's full blocks are "
        "shared, and its last, partly filled one is copied for each."
    )
