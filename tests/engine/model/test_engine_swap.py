"""Preemption by swapping on a real model: a pool that is too small changes no token."""

from __future__ import annotations

import random

import pytest
import torch

from engine.api.client import Submission
from engine.api.config import EngineConfig
from engine.api.knobs import Knobs
from engine.api.sampling import SamplingParams
from engine.api.snapshot import Totals
from engine.api.status import ModelCard
from engine.core.core import EngineCore
from engine.model.forward import make_forward
from engine.model.runner import TorchRunner
from engine.model.trace import trace
from tests.support.clock import VirtualClock
from tests.support.zoo import MAX_LEN, VOCAB_SIZE, tiny_model

CARD = ModelCard("tiny", "Tiny", 0, "float32", "cpu", "torch", MAX_LEN, 0, 0)
LENGTHS = (33, 16, 50, 7, 20, 41)
AMPLE = 80


def outputs(
    name: str, backend: str, num_blocks: int, *, preemption: str, prefix_caching: bool
) -> tuple[dict[str, list[int]], Totals]:
    """What six chats are told, half of them by chance, and what it took."""
    model = tiny_model(name)
    config = EngineConfig(
        num_blocks=num_blocks,
        num_host_blocks=AMPLE,
        max_model_len=MAX_LEN,
        max_num_seqs=6,
        max_num_batched_tokens=48,
    )
    shape = trace(type(model), model.config, torch.float32).shape
    runner = TorchRunner(make_forward(model, config, shape, backend), config, shape)
    assert runner.swap_rate > 0
    knobs = Knobs(
        max_num_seqs=6,
        max_num_batched_tokens=48,
        watermark=0.0,
        preemption=preemption,
        prefix_caching=prefix_caching,
    )
    core = EngineCore(
        config=config,
        runner=runner,
        shape=shape,
        card=CARD,
        key="tiny",
        eos_token_ids=frozenset(),
        knobs=knobs,
        clock=VirtualClock(),
        swap_rate=runner.swap_rate,
    )
    rng = random.Random(3)
    for i, length in enumerate(LENGTHS):
        sampling = SamplingParams(
            temperature=float(i % 2), seed=i, max_tokens=40, repetition_penalty=1.1
        )
        prompt = [rng.randrange(VOCAB_SIZE) for _ in range(length)]
        core.submit(Submission(request_id=f"r{i}"), prompt, sampling)
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
