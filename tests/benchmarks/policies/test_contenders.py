"""That policies are compared on the same work, with the batches and costs that are stated."""

from __future__ import annotations

import pytest

from app.bench.dataset import Ask
from app.bench.lengths import Exponential, Fixed, Uniform
from app.bench.scripts import Recorded, Synthetic
from benchmarks.policies.burst import CAPS, PROMPT, original_box
from benchmarks.policies.contenders import POLICIES, largest_batch, measure


@pytest.mark.parametrize(("cap", "batch"), zip(CAPS, (26, 22, 14, 7), strict=True))
def test_a_static_batch_is_all_that_the_pool_holds(cap: int, batch: int) -> None:
    box = original_box()
    assert largest_batch(box.config, PROMPT + cap) == batch
    workload = Synthetic(num_prompts=2 * batch, input_len=Fixed(PROMPT), output_len=Fixed(cap))
    # One member less, for a watermark or a budget, and it would take a third batch.
    assert measure("static", box.testbed("static"), workload, seed=0).steps == 2 * cap


def test_every_policy_does_the_same_work() -> None:
    box = original_box()
    workload = Synthetic(
        num_prompts=40, input_len=Uniform(64, 512), output_len=Exponential(32, 128)
    )
    work = {
        (figures["total_input_tokens"], figures["total_output_tokens"])
        for policy in POLICIES
        for figures in [measure(policy, box.testbed(policy), workload, seed=3).figures]
    }
    assert len(work) == 1


def two(first: int, second: int) -> Recorded:
    return Recorded(asks=[Ask(0.0, 64, first, 10), Ask(0.0, 64, second, 10)])


def test_bubbles_are_the_decodes_of_a_member_that_has_ended() -> None:
    box = original_box()
    # Both decode once; then one decodes three times beside the place of the other.
    result = measure("static", box.testbed("static"), two(2, 5), seed=0)
    assert result.bubbles == 3 / 8
    assert measure("orca", box.testbed("orca"), two(2, 5), seed=0).bubbles == 0


def test_static_pays_for_bubbles_and_others_do_not() -> None:
    box = original_box()
    paid = measure("static", box.testbed("static"), two(2, 9), seed=0).seconds
    assert paid > measure("static", box.testbed("orca"), two(2, 9), seed=0).seconds
    assert paid == measure("static", box.testbed("dynamic"), two(2, 9), seed=0).seconds
