"""The static baseline: left-padded batches of transformers in which each row has its own length."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.policies.generate import Generated, generate, without_eos
from engine.api.sampling import SamplingParams
from engine.builtin import MODEL_DIR
from engine.driving.traffic import Task

# Tiny operators gain nothing from a second thread and lose much where the cores are shared.
torch.set_num_threads(1)

PROMPTS = ([50, 61, 72], [90, 81, 72, 63, 54, 45, 36, 27, 18], [33, 44, 55, 66, 77])
LENGTHS = (6, 2, 4)


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    loaded = AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.float32)
    assert isinstance(loaded, PreTrainedModel)
    return without_eos(loaded)


def tasks() -> list[Task]:
    return [
        Task(
            request_id=str(number),
            arrival=0.0,
            prompt_token_ids=prompt,
            sampling=SamplingParams(temperature=0.0, min_tokens=length, max_tokens=10),
        )
        for number, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True))
    ]


@pytest.fixture(scope="module")
def in_twos(model: PreTrainedModel) -> Generated:
    return generate(model, tasks(), 2)


def test_each_row_has_its_length_and_the_batch_that_of_its_longest(in_twos: Generated) -> None:
    first, second = in_twos.batches
    assert [len(output) for output in first.outputs + second.outputs] == list(LENGTHS)
    assert (first.steps, first.padding, first.bubbles) == (6, 6, 4)
    assert (second.steps, second.padding, second.bubbles) == (4, 0, 0)


def test_naive_batches_all_run_to_the_longest_of_all(
    model: PreTrainedModel, in_twos: Generated
) -> None:
    """A batch of two, 6 and 2 tokens, and one of one, 4: both take 6 steps."""
    naive = generate(model, tasks(), 2, to_longest=True)
    first, second = naive.batches
    assert (first.steps, first.padding, first.bubbles) == (6, 6, 4)
    assert (second.steps, second.padding, second.bubbles) == (6, 0, 2)
    # What counts is what was asked for, the same tokens as otherwise.
    usual = [batch.outputs for batch in in_twos.batches]
    assert [batch.outputs for batch in naive.batches] == usual
    assert naive.output_tokens == 12


def test_shares_by_hand(in_twos: Generated) -> None:
    decodes = 5 + 1 + 3
    assert in_twos.output_tokens == 12
    assert in_twos.steps == 10
    assert in_twos.bubbles == 4 / (decodes + 4)
    assert in_twos.padded == (6 + 4) / (3 + 9 + 5 + decodes + 6 + 4)


def test_padding_changes_no_token(model: PreTrainedModel) -> None:
    together = generate(model, tasks(), 3).batches[0].outputs
    alone = [batch.outputs[0] for batch in generate(model, tasks(), 1).batches]
    assert together == alone
    assert len({tuple(output[:2]) for output in alone}) > 1, "all rows say the same"


def test_only_the_lengths_end_a_row(model: PreTrainedModel) -> None:
    outputs = generate(model, tasks(), 3).batches[0].outputs
    assert model.generation_config is not None
    model.generation_config.eos_token_id = outputs[0][1]
    try:
        with pytest.raises(AssertionError):
            generate(model, tasks()[:1], 1)
    finally:
        without_eos(model)
    assert generate(model, tasks(), 3).batches[0].outputs == outputs
