"""The sensitivity to overheads, and the replay, against simulating what they compute."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.bench.lengths import Exponential, Fixed
from app.bench.scripts import Synthetic
from benchmarks.policies.burst import PROMPT, at_overhead, original_box
from benchmarks.policies.contenders import POLICIES, measure
from benchmarks.policies.replay import BATCH, NAIVE_TOK_S, Replayed, to_the_longest


@pytest.mark.parametrize("policy", POLICIES)
def test_a_dearer_step_gives_what_a_dearer_device_gives(policy: str) -> None:
    box = original_box()
    workload = Synthetic(num_prompts=50, input_len=Fixed(PROMPT), output_len=Exponential(64, 1536))
    extra = 0.03
    device = replace(box.device, step_overhead=box.device.step_overhead + extra)
    dearer = replace(box, device=device)
    simulated = measure(policy, dearer.testbed(policy), workload, seed=5)
    computed = at_overhead(measure(policy, box.testbed(policy), workload, seed=5), extra)
    assert computed == pytest.approx(simulated.output_throughput, rel=1e-9)


def test_one_batch_stands_for_all_that_go_to_the_longest() -> None:
    box = original_box()
    workload = Synthetic(num_prompts=3 * BATCH, input_len=Fixed(PROMPT), output_len=Fixed(40))
    whole = measure(
        "static", box.testbed("static"), workload, seed=0, changes={"static_batch_size": BATCH}
    )
    replayed = to_the_longest(box, 40, 3)
    assert replayed.seconds == pytest.approx(whole.seconds, rel=1e-9)
    assert replayed.steps == whole.steps == 3 * 40


def test_with_what_is_missing_a_system_gives_what_was_published() -> None:
    system = Replayed("", "", published=4, seconds=100.0, steps=2000)
    tokens = 81_000
    seconds = system.seconds + system.steps * system.missing(tokens)
    assert tokens / seconds == pytest.approx(4 * NAIVE_TOK_S)
