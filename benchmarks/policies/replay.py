"""Part A, continued: the published run as its published code ran it.

Daniel, Shen, Liang, Liaw, "How continuous batching enables 23x throughput in LLM inference while
reducing p50 latency", Anyscale, June 2023; its code is anyscale/llm-continuous-batching-benchmarks
on GitHub, read at d34cb03 (`benchmark_throughput.py`, `benchmark_configs/*_variable_size`,
`launch_scripts/*`). What that code does:

- tokens per second count prompts too (`calculate_throughput`);
- naive static and FasterTransformer have batches of 4 at cap 1536 (16, 12 and 8 at the others);
- naive static takes every batch to the longest output of the whole run (`min_length`);
- FasterTransformer's server sleeps 1 s before each batch, vLLM's 10 ms before each step;
- servers are told true lengths, and the naive continuous ones hold 8,100 tokens;
- lengths above the cap are drawn again, not cut: at cap 1536 that is one in 160,000.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.bench.dataset import Ask
from app.bench.lengths import Fixed
from app.bench.scripts import Recorded, Synthetic
from benchmarks.policies.burst import PROMPT, REQUESTS, SLOTS, original_box, workload
from benchmarks.policies.contenders import Box, Result, measure
from benchmarks.policies.tables import count, ratio, say, table

CAP = 1536
BATCH = 4
QUOTA = 8100
BATCH_SLEEP, STEP_SLEEP = 1.0, 0.01
NAIVE_TOK_S = 81.0
# Times naive static, by the policy that schedules as the published system did: FasterTransformer,
# naive continuous batching, vLLM.
PUBLISHED = {"static": 4, "orca": 8, "prefill_first": 23}


@dataclass(frozen=True, slots=True)
class Replayed:
    """A system of the published run.

    Attributes:
        published: its tokens per second over those of naive static.
        seconds: simulated, its server's sleep included.
    """

    name: str
    how: str
    published: float
    seconds: float
    steps: float

    def missing(self, tokens: int) -> float:
        """Seconds that each step would have to take more for what was published."""
        return (tokens / (NAIVE_TOK_S * self.published) - self.seconds) / self.steps


def replay(seed: int) -> None:
    box = original_box()
    quota = Box.of(box.name, max_model_len=2048, kv_slots=QUOTA)
    scripts = workload(CAP).scripts(box.shape.vocab_size, seed)
    lengths = [script.first.sampling.min_tokens for script in scripts]
    tokens = REQUESTS * PROMPT + sum(lengths)
    batches = -(-REQUESTS // BATCH)
    naive = to_the_longest(box, max(lengths), batches)
    static = scheduled(box, "static", lengths, {"static_batch_size": BATCH})
    orca = scheduled(quota, "orca", lengths)
    paged = scheduled(box, "prefill_first", lengths, {"max_num_batched_tokens": QUOTA})
    systems = (
        naive,
        Replayed(
            "FasterTransformer",
            f"batches of {BATCH} to their own longest, {BATCH_SLEEP:g} s before each",
            PUBLISHED["static"],
            static.seconds + batches * BATCH_SLEEP,
            static.steps,
        ),
        Replayed(
            "naive continuous (TGI, Ray Serve)",
            f"orca in {QUOTA:,} slots",
            PUBLISHED["orca"],
            orca.seconds,
            orca.steps,
        ),
        Replayed(
            "vLLM",
            f"prefill_first in {SLOTS:,} slots, {1e3 * STEP_SLEEP:g} ms before each step",
            PUBLISHED["prefill_first"],
            paged.seconds + paged.steps * STEP_SLEEP,
            paged.steps,
        ),
    )
    show(systems, tokens)
    explain(box, systems, static, lengths)


def show(systems: Sequence[Replayed], tokens: int) -> None:
    """The table: each system as simulated beside what was published of it."""
    naive = systems[0]
    table(
        f"The published run at cap {CAP} as its published code ran it, simulated. tok/s count "
        "prompts and outputs, as they do there",
        ["system", "run as", "tok/s", "published", "ratio", "published", "ms/step", "missing"],
        [
            [
                system.name,
                system.how,
                count(tokens / system.seconds),
                count(NAIVE_TOK_S * system.published),
                ratio(naive.seconds / system.seconds),
                f"{system.published:g}x",
                f"{1e3 * system.seconds / system.steps:.1f}",
                f"{1e3 * system.missing(tokens):+.1f}",
            ]
            for system in systems
        ],
        texts=2,
    )


def explain(box: Box, systems: Sequence[Replayed], static: Result, lengths: Sequence[int]) -> None:
    """The baseline, and the parts that are not simulated.

    Args:
        systems: the systems as shown; naive static is the first, naive continuous the third.
        static: the kernels of naive static, each batch to its own longest.
        lengths: the lengths of the outputs in tokens.
    """
    naive, tokens = systems[0], REQUESTS * PROMPT + sum(lengths)
    say(
        "missing: milliseconds that every step would have to take more to give what was published. "
        f"{NAIVE_TOK_S:.0f} tok/s are {NAIVE_TOK_S * sum(lengths) / tokens:.0f} output tokens a "
        f"second. The baseline takes every batch to the longest output of all, {max(lengths):,} of "
        f"these (their mean is {sum(lengths) / len(lengths):.0f}): with each batch to its own "
        f"longest the same kernels are {ratio(naive.seconds / static.seconds)} as fast, a factor "
        "that is in every ratio to this baseline."
    )
    mean_copied = BATCH * (PROMPT + max(lengths) / 2)
    say(
        "Not simulated: models of transformers then appended to their cache by copying it. At this "
        f"bandwidth that is {1e3 * cache_copy_seconds(box, mean_copied):.1f} ms a step for naive "
        f"static, which misses {1e3 * naive.missing(tokens):.1f}, and "
        f"{1e3 * cache_copy_seconds(box, QUOTA):.1f} ms for a full batch of naive continuous, "
        f"which misses {1e3 * systems[2].missing(tokens):.1f}: the rest of that is not explained "
        "here."
    )


def to_the_longest(box: Box, longest: int, batches: int) -> Replayed:
    """Simulate naive static. One batch is enough, because all take the same time."""
    batch = Synthetic(num_prompts=BATCH, input_len=Fixed(PROMPT), output_len=Fixed(longest))
    result = measure(
        "static", box.testbed("static"), batch, seed=0, changes={"static_batch_size": BATCH}
    )
    return Replayed(
        "naive static (Hugging Face)",
        f"batches of {BATCH} to the longest of all",
        1,
        batches * result.seconds,
        batches * result.steps,
    )


def scheduled(
    box: Box, policy: str, lengths: Sequence[int], changes: Mapping[str, object] | None = None
) -> Result:
    """Simulate a burst of requests, each of which announces the length that it will have."""
    known = Recorded(asks=[Ask(0.0, PROMPT, length, length) for length in lengths])
    return measure(policy, box.testbed(policy), known, seed=0, changes=changes)


def cache_copy_seconds(box: Box, tokens: float) -> float:
    """Seconds to read and to write the keys and values of so many tokens."""
    return 2 * tokens * box.shape.kv_bytes_per_token / box.device.bandwidth
