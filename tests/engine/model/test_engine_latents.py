"""Latents in the cache of a real model: forks copy them, and swaps bring them back."""

from __future__ import annotations

import random

import pytest
import torch

from engine.api.client import Submission
from engine.api.sampling import SamplingParams
from engine.api.snapshot import Totals
from engine.model.tracing.trace import trace
from tests.engine.model.test_parity import assert_parity
from tests.support.swapping import AMPLE, swapping_core
from tests.support.zoo import LATENT, VOCAB_SIZE, tiny_model

LENGTHS = (33, 16, 50, 7, 20)
FORKED = 9  # tokens of the first chat when another one goes on from it


@pytest.mark.parametrize("name", sorted(LATENT))
def test_outputs_and_logits_are_those_of_the_model_alone(name: str, backend: str) -> None:
    assert_parity(name, backend)


def test_what_is_stored_are_latents() -> None:
    model = tiny_model("glm4_moe_lite")
    assert trace(type(model), model.config, torch.float32).shape.has_latents


def outputs(backend: str, num_blocks: int) -> tuple[dict[str, list[int]], Totals]:
    """The replies to five chats and to a fork of the first, and the time they took."""
    core = swapping_core("glm4_moe_lite", backend, num_blocks, preemption="swap")
    rng = random.Random(3)
    sampling = SamplingParams(temperature=0.0, max_tokens=40)
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in LENGTHS]
    for i, prompt in enumerate(prompts):
        core.add_request(Submission(request_id=f"r{i}"), prompt, sampling)
    tokens: dict[str, list[int]] = {f"r{i}": [] for i in range(len(LENGTHS))} | {"fork": []}
    is_forked = False
    while core.num_unfinished:
        for output in core.step():
            tokens[output.request_id].extend(output.token_ids)
            if output.request_id == "fork" and output.end is not None:
                assert output.end.usage.cached_tokens == LENGTHS[0] + FORKED - 3
        core.check()
        if not is_forked and len(tokens["r0"]) >= FORKED:
            is_forked = True
            branch = [*prompts[0], *tokens["r0"][: FORKED - 3], 3, 1]
            core.add_request(Submission(request_id="fork", fork_of="r0"), branch, sampling)
    return tokens, core.snapshot().totals


def test_forks_and_swapped_chats_are_told_what_they_are_told_with_room(backend: str) -> None:
    expected, roomy = outputs(backend, AMPLE)
    told, totals = outputs(backend, 14)
    assert told == expected
    assert told["fork"] != told["r0"]
    assert roomy.preemptions == 0
    assert totals.swaps == totals.preemptions > 1
