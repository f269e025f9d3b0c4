"""Part A: a burst at the original scale, under every policy and at every spread of lengths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from app.bench.lengths import Exponential, Fixed
from app.bench.plots import Chart, Line
from app.bench.scripts import Synthetic
from benchmarks.policies.contenders import POLICIES, Box, Result, largest_batch, measure
from benchmarks.policies.tables import count, percent, ratio, say, table, title
from engine.batch.plan import Row

SLOTS = 14_336
PROMPT = 512
MEAN = 128
CAPS = (32, 128, 512, 1536)
REQUESTS = 1000
EXTRA_MS = (0, 5, 10, 20, 50)

_HEADS = (
    "policy",
    "output tok/s",
    "all tok/s",
    "of static",
    "KV waste",
    "padded",
    "bubbles",
    "batch",
    "steps",
    "ms/step",
)


def original_box() -> Box:
    """OPT-13B on one A100-40GB with the token slots that the texts count: 28 sequences of 512
    tokens, 7 of 2,048."""
    return Box.of("a100-40gb:opt-13b", max_model_len=2048, kv_slots=SLOTS)


def workload(cap: int) -> Synthetic:
    """Requests that all come at once. Each announces the cap."""
    return Synthetic(
        num_prompts=REQUESTS, input_len=Fixed(PROMPT), output_len=Exponential(MEAN, cap)
    )


def run(seed: int) -> dict[str, Chart]:
    box = original_box()
    title(f"A. A burst at the original scale, simulated: {box.name}, {SLOTS:,} token slots")
    say(
        f"{REQUESTS:,} requests at once, {PROMPT} tokens in, outputs exponential of mean {MEAN} "
        "cut at a cap, which is what they announce. One roofline for all, so that policies differ "
        "in scheduling alone. static and dynamic pay for padding and bubbles; with these kernels "
        "static is FasterTransformer's scheduling, without the Python of an eager model."
    )
    results = {
        cap: [measure(p, box.testbed(p), workload(cap), seed=seed) for p in POLICIES]
        for cap in CAPS
    }
    for cap, its in results.items():
        batch = largest_batch(box.config, PROMPT + cap)
        table(
            f"cap {cap}: static batches of {batch}, which {SLOTS:,} / ({PROMPT} + {cap}) allows",
            _HEADS,
            [_row(result, its[0]) for result in its],
        )
    _explain(box, results)
    return {
        "burst-throughput": Chart(
            "A burst of 1,000 requests, OPT-13B on A100-40GB (simulated)",
            "cap on output tokens, as announced",
            "output tok/s",
            tuple(
                Line(policy, CAPS, [results[cap][i].output_throughput for cap in CAPS])
                for i, policy in enumerate(POLICIES)
            ),
            log_x=True,
            points=True,
        ),
        "burst-overhead": _sensitivity(results[max(CAPS)]),
    }


def at_overhead(result: Result, extra: float) -> float:
    """Output tokens a second if each step took `extra` seconds more.

    Exact for a burst: what a policy chooses there does not depend on the time.
    """
    return result.figures["total_output_tokens"] / (result.seconds + result.steps * extra)


def _row(result: Result, static: Result) -> list[str]:
    figures = result.figures
    return [
        result.policy,
        f"{result.output_throughput:.1f}",
        count(figures["total_token_throughput"]),
        ratio(result.output_throughput / static.output_throughput),
        percent(figures["kv_waste"] / 100),
        percent(figures["padding"] / 100),
        percent(result.bubbles),
        f"{figures['mean_batch']:.1f}",
        count(figures["steps"]),
        f"{figures['mean_step_ms']:.1f}",
    ]


def _explain(box: Box, results: Mapping[int, Sequence[Result]]) -> None:
    low, high = results[min(CAPS)], results[max(CAPS)]
    static = high[0]
    over_static = {its.policy: its.output_throughput / static.output_throughput for its in high}
    say(
        "KV waste: token slots given that hold no token anybody still needs, over all given, "
        "weighted by time. padded: padding and bubbles, of all tokens that a padded batch "
        "computes. bubbles: of its decodes alone. batch: sequences computed for somebody, mean "
        "over the steps. dynamic is static where all come at once: its window never closes on a "
        "batch that is not full."
    )
    batch, context = largest_batch(box.config, PROMPT + max(CAPS)), PROMPT + MEAN
    work = box.shape.cost([Row(0, context - 1, 1, (), True, False)] * batch)
    step = work.bytes / box.device.bandwidth + (
        box.device.step_overhead + box.shape.num_layers * box.device.layer_overhead
    )
    say(
        f"By hand: a decode step of {batch} sequences at {context} tokens moves "
        f"{work.bytes / 1e9:.1f} GB at {box.device.bandwidth / 1e12:.2f} TB/s and takes "
        f"{1e3 * step:.1f} ms with its overheads, {batch / step:.0f} tok/s at most. "
        f"{percent(static.bubbles)} of static's decodes are bubbles at cap {max(CAPS)}, which "
        f"leaves {(1 - static.bubbles) * batch / step:.0f}; prompts included it gives "
        f"{static.output_throughput:.0f}."
    )
    spread = [result.output_throughput / low[0].output_throughput for result in low]
    cut = math.exp(-(min(CAPS) - 1) / MEAN)
    prompts = 2 * box.shape.num_active_params * REQUESTS * PROMPT / box.device.flops
    say(
        f"At cap {min(CAPS)} {percent(cut)} of the outputs have that length, and the matrices of "
        f"the prompts alone take {prompts:.0f} s of {min(its.seconds for its in low):.0f} to "
        f"{max(its.seconds for its in low):.0f}: {min(spread):.2f}x to {max(spread):.2f}x of "
        f"static (published: about equal). At cap "
        f"{max(CAPS)} orca has {ratio(over_static['orca'])} and stall_free "
        f"{ratio(over_static['stall_free'])}. Published, over a naive static baseline: naive "
        "continuous batching 8x, vLLM 23x, but FasterTransformer, which batches as static does, "
        "4x; over FasterTransformer that is 2x and 5.75x. What that baseline did is in the "
        "replay below."
    )


def _sensitivity(results: Sequence[Result]) -> Chart:
    static, last = results[0], results[-1]

    def over_static(result: Result, extra: float) -> float:
        return at_overhead(result, extra) / at_overhead(static, extra)

    extras = [extra / 1e3 for extra in EXTRA_MS]
    table(
        f"The same at cap {max(CAPS)} if every step took longer, as under an eager model's "
        "Python: output tok/s (over static)",
        ["policy", *(f"+{extra} ms" for extra in EXTRA_MS)],
        [
            [
                result.policy,
                *(
                    f"{at_overhead(result, e):.0f} ({ratio(over_static(result, e))})"
                    for e in extras
                ),
            ]
            for result in results
        ],
    )
    say(
        f"The dearer a step, the nearer {last.policy} comes to the ratio of the steps, "
        f"{count(static.steps)} over {count(last.steps)}: {ratio(static.steps / last.steps)}."
    )
    drawn = range(max(EXTRA_MS) + 1)
    return Chart(
        f"Output throughput over static's, by the cost of a step (cap {max(CAPS)}, simulated)",
        "added to every step, ms",
        "times static",
        tuple(
            Line(result.policy, drawn, [over_static(result, e / 1e3) for e in drawn])
            for result in results
        ),
    )
