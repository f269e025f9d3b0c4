"""Log-probabilities of prompts on their way through the core.

`CoreHarness` checks after every step that each token of a prompt is told of once, in order, and
before the output.
"""

from __future__ import annotations

import pytest

from engine.api.lifecycle import FinishReason
from engine.scheduling.policies import POLICIES
from tests.support.harness import CoreHarness

PROMPT = list(range(100, 123))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("policy", POLICIES)
def test_each_policy_computes_prompts_that_are_only_looked_at(policy: str, depth: int) -> None:
    """Some have no output, beside others that have."""
    engine = CoreHarness(
        depth=depth,
        policy=policy,
        static_fill="idle",
        batch_window_ms=0.0,
        max_num_batched_tokens=10,
        eos=(),
    )
    for i, max_tokens in enumerate((0, 3, 0, 0, 2)):
        engine.submit(f"r{i}", [i, *PROMPT[: 5 * i]], max_tokens, prompt_logprobs=i)
    engine.submit("silent", PROMPT, 5)
    engine.finish()
    assert {end.reason for end in engine.ends.values()} == {FinishReason.LENGTH}
    assert [len(engine.tokens[f"r{i}"]) for i in range(5)] == [0, 3, 0, 0, 2]
    assert engine.prompts == {f"r{i}": 1 + 5 * i for i in range(5)}


def test_what_is_cached_is_computed_again_and_shared_by_others() -> None:
    engine = CoreHarness()
    engine.submit("first", PROMPT)
    engine.finish()
    engine.submit("asks", PROMPT, prompt_logprobs=1)
    engine.submit("other", PROMPT)
    engine.finish()
    cached = [engine.ends[name].usage.cached_tokens for name in ("first", "asks", "other")]
    assert cached == [0, 0, 20]


@pytest.mark.parametrize("depth", [1, 2])
def test_after_a_preemption_only_the_rest_is_computed_for_it(depth: int) -> None:
    """Reported tokens may be in the cache: a hit ends where reporting goes on."""
    engine = CoreHarness(depth=depth, max_num_batched_tokens=8, num_blocks=40)
    engine.submit("asks", [*PROMPT, *range(40)], prompt_logprobs=0)
    engine.step()
    engine.step()
    engine.commit()
    reported = engine.request("asks").num_logprobs_sent
    engine.preempt("asks")
    engine.finish()
    learned = [plan.rows[0].start for plan in engine.runner.plans if plan.new]
    assert learned == [0, reported - 1]
    assert engine.prompts["asks"] == len(PROMPT) + 40


def test_logits_of_a_prompt_that_are_not_finite_end_its_request() -> None:
    engine = CoreHarness(max_num_batched_tokens=8)
    engine.submit("nan", PROMPT, prompt_logprobs=1)
    engine.submit("good", PROMPT, prompt_logprobs=1)
    engine.runner.nan_seqs.add(1)
    engine.finish()
    error = engine.ends["nan"].error
    assert error is not None
    assert error.message == "the model gave logits that are not finite"
    assert "nan" not in engine.prompts
    assert engine.prompts["good"] == len(PROMPT)


def test_a_prompt_alone_may_take_all_of_the_context() -> None:
    engine = CoreHarness(max_model_len=20, eos=())
    engine.submit("whole", PROMPT[:20], 0, prompt_logprobs=0)
    engine.submit("longer", PROMPT[:21], 0, prompt_logprobs=0)
    engine.finish()
    assert engine.ends["whole"].reason is FinishReason.LENGTH
    error = engine.ends["longer"].error
    assert error is not None
    assert error.message == (
        "the prompt is too long: 21 tokens > 20 allowed"
        " (maximum context length is 20 tokens, pool 256)"
    )


def test_one_that_was_to_have_no_output_is_good_if_it_ended_in_time() -> None:
    engine = CoreHarness()
    engine.submit("soon", PROMPT, 0, prompt_logprobs=0)
    engine.finish()
    goodput = engine.snapshot().goodput
    assert goodput is not None
    assert goodput.share == 1.0
