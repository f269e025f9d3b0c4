from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.api.config import EngineConfig
from engine.api.errors import ModelError
from engine.api.sampling import SamplingParams
from engine.batch.plan import NewSequence, Row, StepPlan, StepResult
from engine.cache.storage import KVStorage
from engine.model.attention.interface import ATTENTION_NAME
from engine.model.running.forward import make_forward
from engine.model.running.runner import TorchRunner
from engine.model.tracing.trace import trace
from tests.support.zoo import VOCAB_SIZE, tiny_model

CONFIG = EngineConfig(
    num_blocks=12, block_size=4, max_model_len=40, max_num_seqs=3, max_num_batched_tokens=32
)
GREEDY = SamplingParams(temperature=0)
PROMPT = (5, 90, 17, 33, 64, 2, 101, 48, 70, 11)


def make_runner(model: PreTrainedModel | None = None) -> TorchRunner:
    model = model or tiny_model("llama")
    shape = trace(type(model), model.config, torch.float32).shape
    return TorchRunner(make_forward(model, CONFIG, shape), CONFIG, shape)


def test_the_memory_of_the_first_blocks_is_there_before_the_first_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cleared: list[Sequence[int]] = []
    monkeypatch.setattr(KVStorage, "clear_blocks", lambda self, blocks: cleared.append(blocks))
    make_runner()
    assert cleared == [[0]]


def new(
    seq: int,
    tokens: tuple[int, ...],
    *,
    sampling: SamplingParams = GREEDY,
    num_prompt_tokens: int | None = None,
    blocks: tuple[int, ...] = (),
) -> NewSequence:
    prompt = len(tokens) if num_prompt_tokens is None else num_prompt_tokens
    return NewSequence(seq, tokens, prompt, sampling, 7, (), blocks)


def run(
    runner: TorchRunner,
    *rows: Row,
    new: tuple[NewSequence, ...] = (),
    released: tuple[int, ...] = (),
    copies: tuple[tuple[int, int], ...] = (),
) -> StepResult:
    return runner.result(runner.start_step(StepPlan(1, rows, new, released, copies)))


def complete(
    runner: TorchRunner, seq: int, tokens: tuple[int, ...], blocks: list[int], count: int
) -> list[int]:
    """Greedy output of one sequence, alone in its steps."""
    need = CONFIG.blocks_for(len(tokens))
    given = tuple(blocks.pop(0) for _ in range(need))
    row = Row(seq, 0, len(tokens), given, True, True)
    output = list(run(runner, row, new=(new(seq, tokens),)).token_ids)
    while len(output) < count:
        at = len(tokens) + len(output) - 1
        given = (blocks.pop(0),) if at % CONFIG.block_size == 0 else ()
        output += run(runner, Row(seq, at, 1, given, True, False)).token_ids
    return output


def expected_output(tokens: tuple[int, ...], count: int) -> list[int]:
    ids = torch.tensor([tokens])
    output = tiny_model("llama").generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False
    )
    found: list[int] = output[0, len(tokens) :].tolist()
    return found


def test_a_sampled_token_is_there_for_the_next_step() -> None:
    runner = make_runner()
    assert complete(runner, 1, PROMPT, [7, 3, 0, 9, 1, 2], 12) == expected_output(PROMPT, 12)


def test_results_are_in_the_order_of_the_plan() -> None:
    """Packing puts single tokens first, by length; nobody outside may notice."""
    runner = make_runner()
    texts = {1: PROMPT, 2: PROMPT[:3], 3: PROMPT[2:9]}
    first = {seq: expected_output(text, 2) for seq, text in texts.items()}
    run(
        runner,
        Row(1, 0, 9, (0, 1, 2), False, True),
        Row(2, 0, 2, (3,), False, True),
        new=(new(1, PROMPT), new(2, PROMPT[:3])),
    )
    result = run(
        runner,
        Row(1, 9, 1, (), True, True),
        Row(3, 0, 7, (4, 5), True, True),
        Row(2, 2, 1, (), True, True),
        new=(new(3, PROMPT[2:9]),),
    )
    assert result.token_ids == (first[1][0], first[3][0], first[2][0])


def test_a_step_without_a_sampling_row_gives_no_token() -> None:
    runner = make_runner()
    result = run(runner, Row(1, 0, 6, (0, 1), False, True), new=(new(1, PROMPT),))
    assert result.token_ids == ()
    assert result.times.forward > 0


def test_a_step_without_rows_still_forgets_and_copies() -> None:
    runner = make_runner()
    complete(runner, 1, PROMPT, [0, 1, 2], 1)
    assert run(runner, released=(1,), copies=((0, 5), (1, 6))).token_ids == ()
    # A sequence that starts in the copies goes on as the first one would.
    held = new(2, PROMPT, blocks=(5, 6))
    result = run(runner, Row(2, 8, 2, (7,), True, True), new=(held,))
    assert list(result.token_ids) == expected_output(PROMPT, 1)


def test_a_copied_block_given_to_a_row_keeps_its_content() -> None:
    runner = make_runner()
    complete(runner, 1, PROMPT, [0, 1, 2], 1)
    result = run(
        runner,
        Row(2, 9, 1, (8,), True, True),
        new=(new(2, PROMPT, blocks=(0, 1)),),
        copies=((2, 8),),
    )
    assert list(result.token_ids) == expected_output(PROMPT, 1)


def test_blocks_of_the_prefix_cache_are_read_and_not_computed() -> None:
    runner = make_runner()
    complete(runner, 1, PROMPT, [0, 1, 2], 1)
    result = run(
        runner,
        Row(2, 8, 2, (5,), True, True),
        new=(new(2, PROMPT, blocks=(0, 1)),),
    )
    assert list(result.token_ids) == expected_output(PROMPT, 1)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=1.5, frequency_penalty=1.0, repetition_penalty=1.2),
        SamplingParams(temperature=0, presence_penalty=2.0),
    ],
)
def test_a_preempted_sequence_goes_on_as_if_nothing_had_been(sampling: SamplingParams) -> None:
    def outputs(preempt_after: int | None) -> list[int]:
        runner = make_runner()
        first = new(1, PROMPT, sampling=sampling)
        output = list(run(runner, Row(1, 0, 10, (0, 1, 2), True, True), new=(first,)).token_ids)
        held, free = 3, list(range(3, 12))
        while len(output) < 10:
            length = len(PROMPT) + len(output)
            again = len(output) == preempt_after
            needed = CONFIG.blocks_for(length) - (0 if again else held)
            given = tuple(free.pop() for _ in range(needed))
            held = CONFIG.blocks_for(length)
            if again:
                learnt = new(1, (*PROMPT, *output), sampling=sampling, num_prompt_tokens=10)
                row = Row(1, 0, length, given, True, True)
                output += run(runner, row, new=(learnt,), released=(1,)).token_ids
            else:
                output += run(runner, Row(1, length - 1, 1, given, True, False)).token_ids
        return output

    undisturbed = outputs(None)
    assert len(set(undisturbed)) > 5
    assert outputs(4) == undisturbed


def test_nan_ends_its_own_row_only_and_leaves_nothing_behind() -> None:
    """Token 99 has a NaN embedding: its sequence fails, the one beside it and the next in its
    blocks do not, though a NaN in a masked slot would pass any mask."""
    model = tiny_model("llama")
    model.get_input_embeddings().weight.data[99] = math.nan
    runner = make_runner(model)
    poisoned = (*PROMPT[:4], 99, *PROMPT[5:9])
    good = PROMPT[:5]
    result = run(
        runner,
        Row(1, 0, 9, (0, 1, 2), True, True),
        Row(2, 0, 5, (3, 4), True, True),
        new=(new(1, poisoned), new(2, good)),
    )
    assert result.token_ids == (-1, expected_output(good, 1)[0])

    for seq in (1, 2):
        run(runner, released=(seq,))
    assert complete(runner, 3, PROMPT, [2, 1, 0, 3, 4], 8) == expected_output(PROMPT, 8)


def test_logits_are_those_of_the_sampling_rows() -> None:
    runner = make_runner()
    plan = StepPlan(
        1,
        (Row(1, 0, 10, (0, 1, 2), True, True), Row(2, 0, 3, (3,), False, True)),
        (new(1, PROMPT), new(2, PROMPT)),
    )
    logits = runner.logits(plan)
    with torch.no_grad():
        expected = tiny_model("llama")(torch.tensor([PROMPT])).logits[0, -1:]
    assert logits.shape == (1, VOCAB_SIZE)
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_log_probabilities_are_those_of_the_model_whatever_the_sampling() -> None:
    """Three sequences over some steps, the middle one asking for nothing; against log_softmax of
    what transformers gives for the same tokens at once."""
    runner = make_runner()
    samplings = {
        1: SamplingParams(temperature=1.3, logprobs=4, logit_bias=((7, 50), (8, -100)), top_k=3),
        2: SamplingParams(temperature=0, frequency_penalty=2.0),
        3: SamplingParams(temperature=0, logprobs=0, repetition_penalty=3.0),
    }
    texts = {seq: PROMPT[: 2 + seq] for seq in samplings}
    results = [
        run(
            runner,
            *(Row(s, 0, len(t), (2 * s, 2 * s + 1), True, True) for s, t in texts.items()),
            new=tuple(new(seq, text, sampling=samplings[seq]) for seq, text in texts.items()),
        )
    ]
    for step in range(1, 3):
        rows = (Row(s, len(t) + step - 1, 1, (), True, False) for s, t in texts.items())
        results.append(run(runner, *rows))

    for column, (seq, text) in enumerate(texts.items()):
        output = [result.token_ids[column] for result in results]
        with torch.no_grad():
            logits = tiny_model("llama")(torch.tensor([[*text, *output]])).logits[0]
        expected = logits[len(text) - 1 : -1].log_softmax(-1)
        for result, token, row in zip(results, output, expected, strict=True):
            found = result.logprobs[column]
            if seq == 2:
                assert found is None
                continue
            assert found is not None
            assert found.logprob == pytest.approx(float(row[token]), abs=1e-5)
            assert found.rank == 1 + int((row > row[token]).sum())
            best = row.topk(samplings[seq].logprobs or 0)
            assert [i for i, _ in found.top] == best.indices.tolist()
            assert [x for _, x in found.top] == pytest.approx(best.values.tolist(), abs=1e-5)
    assert {result.token_ids[0] for result in results} == {7}, "the bias has forced it"


def test_a_step_in_which_no_row_asks_has_no_log_probabilities() -> None:
    runner = make_runner()
    assert run(runner, Row(1, 0, 10, (0, 1, 2), True, True), new=(new(1, PROMPT),)).logprobs == ()


def test_a_sequence_may_fill_the_model_length() -> None:
    runner = make_runner()
    tokens = tuple(range(39))
    assert len(complete(runner, 1, tokens, list(range(10)), 1)) == 1


def test_the_phases_of_a_step_are_timed() -> None:
    runner = make_runner()
    times = run(runner, Row(1, 0, 9, (0, 1, 2), True, True), new=(new(1, PROMPT[:9]),)).times
    assert 0 < times.prepare < times.forward
    assert times.sample > 0


def test_a_model_whose_attention_cannot_be_chosen_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_model("llama")
    shape = trace(type(model), model.config, torch.float32).shape
    monkeypatch.setattr(type(model), "_can_set_attn_implementation", lambda self: False)
    with pytest.raises(ModelError, match="LlamaForCausalLM does not let its attention be chosen"):
        TorchRunner(make_forward(model, CONFIG, shape), CONFIG, shape)
    assert model.config._attn_implementation != ATTENTION_NAME


def test_a_model_that_gives_logits_of_all_tokens_is_read_by_row() -> None:
    """As many tokens as rows do not mean that they are in the rows' order."""
    usual, model = tiny_model("llama"), tiny_model("llama")
    forward = model.forward

    def of_all_tokens(input_ids: Tensor, position_ids: Tensor, use_cache: bool) -> Any:
        return forward(input_ids=input_ids, position_ids=position_ids, use_cache=use_cache)

    model.forward = of_all_tokens
    shape = trace(type(usual), usual.config, torch.float32).shape
    found: list[list[Tensor]] = []
    for one in (usual, model):
        runner = TorchRunner(make_forward(one, CONFIG, shape, "torch"), CONFIG, shape)
        prompts = (Row(1, 0, 9, (0, 1, 2), True, True), Row(2, 0, 3, (3,), True, True))
        decodes = (Row(1, 9, 1, (), True, False), Row(2, 3, 1, (), True, False))
        sequences = (new(1, PROMPT), new(2, PROMPT[2:6]))
        logits = [runner.logits(StepPlan(1, prompts, sequences)).clone()]
        logits.append(runner.logits(StepPlan(2, decodes)).clone())
        found.append(logits)
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got, expected)


def test_dropout_is_switched_off() -> None:
    model = tiny_model("llama").train()
    make_runner(model)
    assert not model.training


def test_closing_lets_go_of_the_cache() -> None:
    runner = make_runner()
    runner.close()
    with pytest.raises(AttributeError):
        run(runner, Row(1, 0, 1, (0,), True, True), new=(new(1, PROMPT),))
