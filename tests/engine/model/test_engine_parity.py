"""The whole engine against transformers' own `generate`, for every architecture that is served.

On a GPU: `BATCHDECK_TEST_DEVICE=cuda pytest tests/engine/model/test_engine_parity.py`.
"""

from __future__ import annotations

import os
import random
from functools import cache

import pytest
import torch
from transformers import PreTrainedModel

from engine.api.client import Submission
from engine.api.config import EngineConfig
from engine.api.knobs import Knobs
from engine.api.lifecycle import FinishReason
from engine.api.sampling import SamplingParams
from engine.api.status import ModelCard
from engine.batch.plan import End, Runner
from engine.batch.shape import ModelShape
from engine.core.core import EngineCore
from engine.model.running.forward import make_forward
from engine.model.running.runner import TorchRunner
from engine.model.tracing.trace import trace
from tests.support.clock import VirtualClock
from tests.support.delaying_stream import DelayingStream
from tests.support.zoo import (
    BY_MODULES,
    LATENT,
    MAX_LEN,
    MIXED,
    MORE_WRAPPERS,
    SERVED,
    STATEFUL,
    VOCAB_SIZE,
    WRAPPERS,
    tiny_model,
)

DEVICE = os.environ.get("BATCHDECK_TEST_DEVICE", "cpu")
NUM_REQUESTS = 16
OUTPUT_TOKENS = 20
ABORTED = {3: 9, 11: 14}  # request -> step
NEAR_TIE = 1e-4

CARD = ModelCard("tiny", "Tiny", 0, "float32", "cpu", "torch", MAX_LEN, 0, 0)


def make_prompts() -> list[list[int]]:
    """Mixed lengths; every third shares a prefix of three blocks, two are equal."""
    rng = random.Random(11)
    shared = [rng.randrange(VOCAB_SIZE) for _ in range(50)]
    prompts = []
    for i in range(NUM_REQUESTS):
        own = [rng.randrange(VOCAB_SIZE) for _ in range(rng.choice([1, 5, 16, 33, 60]))]
        prompts.append(shared + own if i % 3 == 0 else own)
    prompts[9] = list(prompts[6])
    return prompts


def runner_of(
    model: PreTrainedModel, config: EngineConfig, shape: ModelShape, backend: str | None
) -> Runner:
    """The runner that a backend is loaded with. That of a GPU, where there is none, does its work
    as late as it may."""
    forward = make_forward(model, config, shape, backend)
    if backend != "triton":
        return TorchRunner(forward, config, shape)
    from engine.model.gpu.forward import GpuForward
    from engine.model.gpu.start import runner_with_graphs

    assert isinstance(forward, GpuForward)
    stream = DelayingStream() if DEVICE == "cpu" else None
    return runner_with_graphs(forward, config, shape, stream)


def run_engine(
    model: PreTrainedModel, prompts: list[list[int]], backend: str | None
) -> tuple[dict[str, list[int]], dict[str, End], EngineCore]:
    """All prompts through a pool too small for them, in chunks, arriving two steps apart."""
    config = EngineConfig(
        num_blocks=18,
        max_model_len=MAX_LEN,
        max_num_seqs=8,
        max_num_batched_tokens=24,
        num_snapshots=5,
        device=DEVICE,
    )
    shape = trace(type(model), model.config, torch.float32).shape
    core = EngineCore(
        config=config,
        runner=runner_of(model, config, shape, backend),
        shape=shape,
        card=CARD,
        key="tiny",
        eos_token_ids=frozenset(),
        knobs=Knobs(max_num_seqs=8, max_num_batched_tokens=24, watermark=0.0),
        clock=VirtualClock(),
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=OUTPUT_TOKENS)
    tokens: dict[str, list[int]] = {f"r{i}": [] for i in range(len(prompts))}
    ends: dict[str, End] = {}
    step = 0
    while len(ends) < len(prompts):
        if step % 2 == 0 and step // 2 < len(prompts):
            core.add_request(Submission(request_id=f"r{step // 2}"), prompts[step // 2], sampling)
        for index, when in ABORTED.items():
            if step == 2 * index + when:
                core.abort(f"r{index}")
        for output in core.step():
            tokens[output.request_id].extend(output.token_ids)
            if output.end is not None:
                assert output.request_id not in ends
                ends[output.request_id] = output.end
        core.check()
        step += 1
        assert step < 2000
    return tokens, ends, core


@cache
def generated(name: str) -> dict[int, list[int]]:
    """Outputs of the model itself, by prompts: the first, one that shares a prefix, the last."""
    model = tiny_model(name).to(DEVICE)
    found = {}
    for number in (0, 6, 15):
        ids = torch.tensor([make_prompts()[number]], device=DEVICE)
        mask = torch.ones_like(ids)
        output = model.generate(
            ids, attention_mask=mask, max_new_tokens=OUTPUT_TOKENS, do_sample=False, pad_token_id=0
        )
        found[number] = output[0, ids.shape[1] :].tolist()
    return found


def assert_greedy(model: PreTrainedModel, prompt: list[int], got: list[int]) -> None:
    """Each token is the model's own best after those before it, or ties with it."""
    with torch.inference_mode():
        logits = (
            model(torch.tensor([prompt + got], device=DEVICE), use_cache=False).logits[0].double()
        )
    for position, token in enumerate(got):
        scores = logits[len(prompt) - 1 + position]
        gap = (scores.max() - scores[token]).item()
        assert gap < NEAR_TIE, f"output token {position}: {token} lies {gap} below the best"


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(SERVED | WRAPPERS | MIXED))
def test_the_engine_of_a_gpu_gives_the_tokens_of_generate(name: str) -> None:
    pytest.importorskip("triton")
    check_engine(name, "triton")


@pytest.mark.parametrize("name", [*sorted(STATEFUL), *sorted(LATENT), *sorted(BY_MODULES)])
def test_models_that_no_program_computes_give_the_tokens_of_generate(name: str) -> None:
    check_engine(name, None)


@pytest.mark.parametrize("name", sorted(SERVED | WRAPPERS | MIXED))
def test_engine_gives_the_tokens_of_generate(name: str, backend: str) -> None:
    check_engine(name, backend if DEVICE == "cpu" else "triton")


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(MORE_WRAPPERS))
def test_engine_gives_the_tokens_of_generate_for_more_wrappers(name: str, backend: str) -> None:
    check_engine(name, backend if DEVICE == "cpu" else "triton")


def check_engine(name: str, backend: str | None) -> None:
    model, eager = tiny_model(name).to(DEVICE), tiny_model(name).to(DEVICE)
    prompts = make_prompts()
    tokens, ends, core = run_engine(model, prompts, backend)

    totals = core.snapshot().totals
    assert totals.preemptions > 0
    assert totals.prefix_hit_tokens > 0
    assert max(r.prefill_rows and r.decode_rows for r in core.records.since(0)) > 0
    for i, prompt in enumerate(prompts):
        request = f"r{i}"
        if i in ABORTED:
            assert ends[request].reason is FinishReason.ABORT
        else:
            assert ends[request].reason is FinishReason.LENGTH
            assert len(tokens[request]) == OUTPUT_TOKENS
        if tokens[request]:
            assert_greedy(eager, prompt, tokens[request])
    for i, expected in generated(name).items():
        assert tokens[f"r{i}"] == expected
    varied = {tuple(tokens[f"r{i}"]) for i in range(NUM_REQUESTS)}
    assert len(varied) > NUM_REQUESTS // 2
    assert all(len(set(tokens[f"r{i}"])) > 2 for i in range(NUM_REQUESTS) if i not in ABORTED)
