"""Preemption by swapping on a real model: a pool that is too small changes no token."""

from __future__ import annotations

import random

import pytest

from engine.api.client import Submission
from engine.api.sampling import SamplingParams
from engine.api.snapshot import Totals
from tests.support.swapping import AMPLE, swapping_core
from tests.support.zoo import VOCAB_SIZE

LENGTHS = (33, 16, 50, 7, 20, 41)


def outputs(
    name: str, backend: str, num_blocks: int, *, preemption: str, prefix_caching: bool
) -> tuple[dict[str, list[int]], Totals]:
    """The replies to six chats, half of them sampled, and the time they took."""
    core = swapping_core(
        name, backend, num_blocks, preemption=preemption, prefix_caching=prefix_caching
    )
    rng = random.Random(3)
    for i, length in enumerate(LENGTHS):
        sampling = SamplingParams(
            temperature=float(i % 2), seed=i, max_tokens=40, repetition_penalty=1.1
        )
        prompt = [rng.randrange(VOCAB_SIZE) for _ in range(length)]
        core.add_request(Submission(request_id=f"r{i}"), prompt, sampling)
    tokens: dict[str, list[int]] = {f"r{i}": [] for i in range(len(LENGTHS))}
    while core.num_unfinished:
        for output in core.step():
            tokens[output.request_id].extend(output.token_ids)
        core.check()
    return tokens, core.snapshot().totals


@pytest.mark.parametrize(
    ("name", "prefix_caching"), [("llama", True), ("llama", False), ("gemma4_text", True)]
)
def test_swapped_chats_are_told_what_they_are_told_with_room(
    name: str, backend: str, prefix_caching: bool
) -> None:
    """Token for token: what comes back is what went, and nothing is computed again."""
    expected, roomy = outputs(
        name, backend, AMPLE, preemption="swap", prefix_caching=prefix_caching
    )
    told, totals = outputs(name, backend, 14, preemption="swap", prefix_caching=prefix_caching)
    assert told == expected
    assert roomy.preemptions == 0
    assert totals.swaps == totals.preemptions > 2
    assert totals.prefill_tokens == roomy.prefill_tokens == sum(LENGTHS)
