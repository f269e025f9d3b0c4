from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.api.logprobs import TokenLogprobs
from engine.api.sampling import SamplingParams
from engine.batch.plan import NewSequence
from engine.model.step.sampler import Sampled, Sampler

INF = float("inf")


def sample(logits: Tensor, params: Sequence[SamplingParams]) -> Sampled:
    """One step of fresh sequences, one for each row, seeded by their row."""
    sampler = Sampler(max_num_seqs=len(params), vocab_size=logits.shape[1], device="cpu")
    for row, sampling in enumerate(params):
        sampler.add(row, NewSequence(0, (0, 2), 1, sampling, row, (3,), ()))
    return sampler.sample(logits, np.arange(len(params)), np.full(len(params), 2))


def by_hand(logits: Sequence[float], token: int, count: int) -> TokenLogprobs:
    """The definition with lists, float64 and a full sort."""
    best = max(logits)
    total = best + math.log(sum(math.exp(x - best) for x in logits))
    ranked = sorted((-x, i) for i, x in enumerate(logits) if x > -INF)
    return TokenLogprobs(
        logits[token] - total,
        1 + sum(x > logits[token] for x in logits),
        tuple((i, -x - total) for x, i in ranked[:count]),
    )


def agree(found: TokenLogprobs | None, expected: TokenLogprobs) -> bool:
    """Equal but for the rounding of float32."""
    assert found is not None
    assert [i for i, _ in found.top] == [i for i, _ in expected.top]
    numbers = [(found.logprob, expected.logprob)]
    numbers += zip((x for _, x in found.top), (x for _, x in expected.top), strict=True)
    assert all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-5) for a, b in numbers), numbers
    return found.rank == expected.rank


# Eighths, so that there are ties, and tokens that the model rules out.
logit = st.floats(-30, 30).map(lambda x: round(x * 8) / 8) | st.just(-INF)
asking = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.8, 2.0]),
    top_k=st.integers(0, 5),
    repetition_penalty=st.sampled_from([1.0, 1.4]),
    presence_penalty=st.sampled_from([0.0, 1.0]),
    logit_bias=st.sampled_from([(), ((1, 9.0), (4, -100.0))]),
    min_tokens=st.sampled_from([0, 3]),
    logprobs=st.none() | st.integers(0, 20),
)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[list[float]], list[SamplingParams]]:
    vocab_size = draw(st.integers(5, 40))
    # The last one is finite, so that each row has a token whatever is suppressed.
    row = st.lists(logit, min_size=vocab_size - 1, max_size=vocab_size - 1)
    rows = draw(st.lists(row, min_size=1, max_size=5))
    return [[*row, 0.0] for row in rows], [draw(asking) for _ in rows]


@given(batches())
@settings(deadline=None)
def test_they_are_the_models_own_whatever_the_sampler_does(
    batch: tuple[list[list[float]], list[SamplingParams]],
) -> None:
    rows, params = batch
    sampled = sample(torch.tensor(rows), params)
    if all(p.logprobs is None for p in params):
        assert sampled.logprobs == ()
        return
    for logits, p, token, found in zip(
        rows, params, sampled.token_ids.tolist(), sampled.logprobs, strict=True
    ):
        if p.logprobs is None:
            assert found is None
        else:
            assert agree(found, by_hand(logits, token, p.logprobs))


@given(batches())
@settings(deadline=None)
def test_rows_that_ask_change_no_token_of_any_row(
    batch: tuple[list[list[float]], list[SamplingParams]],
) -> None:
    rows, params = batch
    silent = [replace(p, logprobs=None) for p in params]
    expected = sample(torch.tensor(rows), silent)
    assert expected.logprobs == ()
    assert sample(torch.tensor(rows), params).token_ids.tolist() == expected.token_ids.tolist()


@given(batches())
@settings(deadline=None)
def test_a_rows_numbers_do_not_depend_on_the_others(
    batch: tuple[list[list[float]], list[SamplingParams]],
) -> None:
    rows, params = batch
    params = [replace(p, temperature=0.0, logprobs=p.logprobs or 0) for p in params]
    together = sample(torch.tensor(rows), params).logprobs
    for logits, p, found in zip(rows, params, together, strict=True):
        (alone,) = sample(torch.tensor([logits]), [p]).logprobs
        assert alone is not None
        assert agree(found, alone)


def test_a_large_vocabulary_in_float32() -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 50_000) * 4
    wanted = [0, 1, 5, 20, 20, 20]
    params = [SamplingParams(logprobs=n) for n in wanted]
    sampled = sample(logits.clone(), params)
    for row, (token, found) in enumerate(zip(sampled.token_ids, sampled.logprobs, strict=True)):
        assert agree(found, by_hand(logits[row].tolist(), int(token), wanted[row]))


def test_a_nearly_certain_token_keeps_what_it_lacks_to_0() -> None:
    logits = torch.tensor([[40.0, 30.0]])
    (found,) = sample(logits, [SamplingParams(temperature=0, logprobs=1)]).logprobs
    assert found is not None
    assert found.logprob == pytest.approx(-math.log1p(math.exp(-10)), rel=0.01)
    assert found.top == ((0, found.logprob),)


def test_greedy_without_changes_is_rank_1_and_the_first_of_the_likeliest() -> None:
    logits = torch.randn(20, 300, generator=torch.Generator().manual_seed(1))
    sampled = sample(logits, [SamplingParams(temperature=0, logprobs=1)] * 20)
    for token, found in zip(sampled.token_ids.tolist(), sampled.logprobs, strict=True):
        assert found is not None
        assert (found.rank, found.top) == (1, ((token, found.logprob),))


def test_equals_share_a_rank_and_come_by_id() -> None:
    (found,) = sample(torch.zeros(1, 200), [SamplingParams(temperature=0, logprobs=3)]).logprobs
    assert found is not None
    assert found.rank == 1
    assert [i for i, _ in found.top] == [0, 1, 2]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, INF])
def test_a_row_without_a_token_has_none(temperature: float, bad: float) -> None:
    logits = torch.randn(3, 300, generator=torch.Generator().manual_seed(2))
    logits[1, 299] = bad
    params = [SamplingParams(temperature=temperature, logprobs=2)] * 3
    sampled = sample(logits, params)
    assert sampled.token_ids[1] == -1
    assert [found is None for found in sampled.logprobs] == [False, True, False]
    assert sample(torch.full((1, 300), -INF), params[:1]).logprobs == (None,)


def test_a_freed_index_asks_for_none() -> None:
    sampler = Sampler(max_num_seqs=1, vocab_size=9, device="cpu")
    for logprobs, given_back in ((4, 1), (None, 0)):
        params = SamplingParams(logprobs=logprobs)
        sampler.add(0, NewSequence(0, (0,), 1, params, 0, (), ()))
        found = sampler.sample(torch.zeros(1, 9), np.array([0]), np.array([1])).logprobs
        assert len(found) == given_back
        sampler.remove(0)


def test_rows_that_are_computed_in_groups_have_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    logits = torch.randn(5, 40)
    params = [SamplingParams(temperature=0, logprobs=count) for count in (3, 0, 20, 1, 2)]
    whole = sample(logits.clone(), params)
    monkeypatch.setattr("engine.model.step.logprobs._GROUP", 2 * 40)
    assert sample(logits.clone(), params).logprobs == whole.logprobs
