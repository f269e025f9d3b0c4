"""A real model file as people have it, beside what transformers computes of its weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.api.client import ChatMessage
from engine.api.sampling import SamplingParams
from engine.batch.plan import NewSequence, Row, StepPlan
from engine.model.files.quantized.gguf import GgufFile
from engine.serving.loading import LoadedModel
from tests.support.loading import load
from tests.support.native import kernels_or_skip

kernels_or_skip()
pytestmark = pytest.mark.usefixtures("encodes_here")

MOST = 24
# What transformers 5.24 replies, greedily, with the file's weights unpacked to float32. Activations
# of 8 bits change the first one (llama.cpp 0.3.36 says "L'Étoile, la Cité").
REPLIES = {
    "What is the capital of France?": "The capital of France is Paris.",
    "Name three animals.": "1. A cat\n2. A dog\n3. A bear",
    "Why is the sky blue?": "The answer to this question lies in the intricate dance of light and "
    "color. The sky appears blue because of a phenomenon known",
    "Write a haiku about the sea.": "The waves of the sea, a silent beauty,\nA gentle lapping of "
    "the shore,\nA reminder of the",
}


@pytest.fixture
def tokenizer(smollm2: Path) -> Any:
    return GgufFile(smollm2).tokenizer_recipe.build()


@pytest.fixture(params=["float32", None])
def loaded(smollm2: Path, request: pytest.FixtureRequest) -> Iterator[LoadedModel]:
    """The model in float32, and in the type that a user gets."""
    model = load(smollm2, dtype=request.param, max_num_batched_tokens=128)
    yield model
    model.close()


def prompt_of(tokenizer: Any, question: str) -> list[int]:
    asked = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
    return list(tokenizer.encode(text, add_special_tokens=False))


def reply_of(loaded: LoadedModel, prompt: list[int]) -> list[int]:
    """The likeliest token after each one, up to the end of the reply, each behind a new prompt."""
    runner: Any = loaded.runner
    reply: list[int] = []
    while len(reply) < MOST:
        ids = (*prompt, *reply)
        new = (NewSequence(0, ids, len(ids) + 1, SamplingParams(), 0, (), ()),)
        row = Row(0, 0, len(ids), tuple(range(-(-len(ids) // 16))), samples=True, prefill=True)
        best = int(runner.logits(StepPlan(1, (row,), new=new))[0].argmax())
        runner.logits(StepPlan(2, (), released=(0,)))
        if best in loaded.eos_token_ids:
            break
        reply.append(best)
    return reply


def test_a_real_file_is_wholly_on_the_fast_path_and_replies_as_its_unrounded_weights(
    loaded: LoadedModel, smollm2: Path, tokenizer: Any
) -> None:
    assert (loaded.card.off_path, loaded.card.off_kernels) == ((), "")
    assert loaded.card.packed_as == "GGUF Q4_1"
    served = loaded.shape.weight_bytes
    assert served < 1.05 * smollm2.stat().st_size
    assert loaded.card.loss is not None
    assert loaded.card.loss.equal_best > 0.98
    for question, expected in REPLIES.items():
        prompt = prompt_of(tokenizer, question)
        assert loaded.codec.encode([ChatMessage("user", question)], None) == prompt
        # In bfloat16 what lies between two operations is rounded, and other replies differ.
        if loaded.card.dtype != "bfloat16" or "France" in question:
            assert tokenizer.decode(reply_of(loaded, prompt)) == expected
