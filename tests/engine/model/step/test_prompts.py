"""Log-probabilities of prompts against those that transformers computes of the whole prompt."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from engine.api.client import Submission
from engine.api.config import EngineConfig
from engine.api.knobs import Knobs
from engine.api.lifecycle import FinishReason
from engine.api.logprobs import TokenLogprobs
from engine.api.sampling import SamplingParams
from engine.api.status import ModelCard
from engine.core.core import EngineCore
from engine.model.running.forward import make_forward
from engine.model.running.runner import TorchRunner
from engine.model.tracing.trace import trace
from engine.native import kernels
from tests.support.clock import VirtualClock
from tests.support.zoo import LATENT, MAX_LEN, SERVED, STATEFUL, VOCAB_SIZE, WRAPPERS, tiny_model

TOLERANCE = 1e-4
CARD = ModelCard("tiny", "Tiny", 0, "float32", "cpu", "torch", MAX_LEN, 0, 0)
CONFIG = EngineConfig(
    num_blocks=18, max_model_len=MAX_LEN, max_num_seqs=4, max_num_batched_tokens=90, num_snapshots=5
)
# Behind a prompt of one token nothing is sent, and one of 150 tokens takes several slices.
PROMPTS = tuple(
    tuple(random.Random(seed).randrange(VOCAB_SIZE) for _ in range(length))
    for seed, length in enumerate((150, 1, 2, 40, 97))
)


@torch.inference_mode()
def by_transformers(model: PreTrainedModel, prompt: Sequence[int]) -> torch.Tensor:
    """[prompt, vocab] float64, log-probabilities behind each token."""
    logits = model(torch.tensor([prompt]), use_cache=False).logits[0]
    return logits.double().log_softmax(-1)


def core_of(model: PreTrainedModel, backend: str | None) -> EngineCore:
    shape = trace(type(model), model.config, torch.float32).shape
    return EngineCore(
        config=CONFIG,
        runner=TorchRunner(make_forward(model, CONFIG, shape, backend), CONFIG, shape),
        shape=shape,
        card=CARD,
        key="tiny",
        eos_token_ids=frozenset(),
        knobs=Knobs(max_num_seqs=4, max_num_batched_tokens=90, watermark=0.0),
        clock=VirtualClock(),
    )


def serve(
    core: EngineCore, chunk: int, *, number: int = 3, max_tokens: int = 4
) -> list[list[TokenLogprobs]]:
    """The log-probabilities of all prompts, without the first tokens, in chunks."""
    core.change_knobs({"max_num_batched_tokens": max(chunk, 4)}, "test")
    sent: dict[str, list[TokenLogprobs]] = {}
    ids: dict[str, list[int]] = {}
    for at, prompt in enumerate(PROMPTS):
        sampling = SamplingParams(
            temperature=0.0, prompt_logprobs=number, max_tokens=max_tokens, repetition_penalty=1.3
        )
        core.add_request(Submission(request_id=f"{chunk} {at}"), prompt, sampling)
        sent[f"{chunk} {at}"], ids[f"{chunk} {at}"] = [], []
    while core.num_unfinished or not core.idle:
        for output in core.step():
            if output.prompt is not None:
                sent[output.request_id] += [found for _, found in output.prompt]
                ids[output.request_id] += output.prompt.token_ids
            if output.end is not None:
                assert output.end.reason is FinishReason.LENGTH
        core.check()
    assert [*ids.values()] == [[*prompt[1:]] for prompt in PROMPTS]
    return list(sent.values())


def compare(found: Sequence[TokenLogprobs], prompt: Sequence[int], expected: torch.Tensor) -> None:
    for one, token, row in zip(found, prompt[1:], expected, strict=False):
        assert one.logprob == pytest.approx(float(row[token]), abs=TOLERANCE)
        likelier = int((row > row[token] + TOLERANCE).sum())
        as_likely = int((row >= row[token] - TOLERANCE).sum())
        assert 1 + likelier <= one.rank <= as_likely
        best = row.topk(len(one.top)).values.tolist()
        assert [logprob for _, logprob in one.top] == pytest.approx(best, abs=TOLERANCE)
        for token_id, logprob in one.top:
            assert logprob == pytest.approx(float(row[token_id]), abs=TOLERANCE)


BACKENDS = ["torch", "cpu"] if kernels() else ["torch"]
# A plain model, one that caps its logits, one that scales them, one that learned its positions, one
# of experts, those with states, with latents and with towers; the others where there is time.
FEW = ("llama", "gemma2", "granite", "gpt2", "qwen3_moe", "lfm2", "mamba2", *LATENT, *WRAPPERS)
KINDS = [
    pytest.param(kind, marks=[] if kind in FEW else pytest.mark.long)
    for kind in (*SERVED, *STATEFUL, *LATENT, *WRAPPERS)
]


@cache
def of_transformers(kind: str) -> list[torch.Tensor]:
    model = tiny_model(kind)
    return [by_transformers(model, prompt) for prompt in PROMPTS]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_they_are_those_of_the_model(kind: str, backend: str) -> None:
    """In chunks of several sizes, through a pool that is too small for all of them at once."""
    expected = of_transformers(kind)
    core = core_of(tiny_model(kind), backend)
    for chunk in (90, 7):
        for found, prompt, row in zip(serve(core, chunk), PROMPTS, expected, strict=True):
            compare(found, prompt, row)


@pytest.fixture(scope="module")
def whole() -> tuple[EngineCore, list[list[TokenLogprobs]]]:
    """A core, and what it tells of prompts that are computed at once as far as they can be."""
    core = core_of(tiny_model("llama"), BACKENDS[-1])
    return core, serve(core, 90)


@given(chunk=st.integers(1, 90), max_tokens=st.sampled_from((0, 1, 3)))
@settings(deadline=None, max_examples=12)
def test_any_chunks_tell_the_same(
    whole: tuple[EngineCore, list[list[TokenLogprobs]]], chunk: int, max_tokens: int
) -> None:
    core, expected = whole
    for found, wanted in zip(serve(core, chunk, max_tokens=max_tokens), expected, strict=True):
        assert [one.rank for one in found] == [one.rank for one in wanted]
        for one, other in zip(found, wanted, strict=True):
            assert [token for token, _ in one.top] == [token for token, _ in other.top]
            assert one.logprob == pytest.approx(other.logprob, abs=TOLERANCE)


def test_a_prompt_whose_logits_are_not_finite_has_no_answer() -> None:
    model = tiny_model("llama")
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = float("nan")
    core = core_of(model, "torch")
    for name, prompt in {"nan": (5, 6, 7, 8), "good": (5, 6, 9, 8)}.items():
        sampling = SamplingParams(prompt_logprobs=1, max_tokens=0)
        core.add_request(Submission(request_id=name), prompt, sampling)
    ends = {}
    while core.num_unfinished:
        ends |= {output.request_id: output.end for output in core.step() if output.end is not None}
    assert ends["good"].error is None
    assert ends["nan"].error is not None
    assert ends["nan"].error.message == "the model gave logits that are not finite"
