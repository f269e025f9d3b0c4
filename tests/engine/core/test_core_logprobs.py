"""Log-probabilities and biases on their way through the core.

`CoreHarness` checks after every step that each token comes with its own numbers, once.
"""

from __future__ import annotations

import pytest

from engine.api.lifecycle import FinishReason
from tests.support.harness import SHAPE, CoreHarness

PROMPT = list(range(100, 108))


@pytest.mark.parametrize("depth", [1, 2])
def test_preempted_and_resumed_requests_get_each_once(depth: int) -> None:
    engine = CoreHarness(num_blocks=14, depth=depth)
    for i, logprobs in enumerate([3, None, 0]):
        engine.submit(f"r{i}", [i, *PROMPT], 20, logprobs=logprobs)
    engine.finish()
    assert any(record.preempted for record in engine.records)
    assert [len(engine.tokens[f"r{i}"]) for i in range(3)] == [20] * 3


@pytest.mark.parametrize("depth", [1, 2])
def test_the_last_token_of_each_kind_of_end_has_them_too(depth: int) -> None:
    engine = CoreHarness(depth=depth, eos=range(0, 1000, 3))
    for name, options in {
        "length": {},
        "eos": {"ignore_eos": False},
        "stop": {"stop_token_ids": tuple(range(0, 1000, 4))},
    }.items():
        engine.submit(name, PROMPT, 30, logprobs=2, **options)
    engine.finish()
    reasons = [engine.ends[name].reason for name in ("length", "eos", "stop")]
    assert reasons == [FinishReason.LENGTH, FinishReason.STOP, FinishReason.STOP]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_row_without_a_token_and_one_that_was_aborted_have_none(depth: int) -> None:
    engine = CoreHarness(depth=depth)
    for name in ("nan", "gone", "good"):
        engine.submit(name, PROMPT, 6, logprobs=1)
    engine.step()
    engine.runner.nan_seqs.add(1)
    engine.core.abort("gone")
    engine.finish()
    assert engine.ends["nan"].reason is FinishReason.ERROR
    assert engine.ends["gone"].reason is FinishReason.ABORT
    assert len(engine.tokens["good"]) == 6


def test_a_failed_step_gives_none_twice() -> None:
    engine = CoreHarness()
    engine.submit("a", PROMPT, 8, logprobs=1)
    engine.step()
    engine.submit("b", PROMPT, 8, logprobs=1)
    engine.runner.fail_steps.add(2)
    engine.finish()
    assert engine.ends["b"].reason is FinishReason.ERROR
    assert len(engine.tokens["a"]) == 8


def test_a_bias_of_a_token_that_the_model_does_not_have_is_refused() -> None:
    engine = CoreHarness()
    last = SHAPE.vocab_size - 1
    engine.submit("good", PROMPT, 2, logit_bias=((last, 1.0),))
    engine.submit("bad", PROMPT, 2, logit_bias=((5, 1.0), (last + 1, 1.0)))
    engine.finish()
    assert engine.ends["good"].error is None
    error = engine.ends["bad"].error
    assert error is not None
    assert (error.type, error.param) == ("invalid_request_error", "logit_bias")
    assert error.message == f"logit_bias has token id {last + 1}; the model's are 0 to {last}"
