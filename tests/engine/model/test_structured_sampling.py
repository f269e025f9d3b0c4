"""Structures in the sampler: whatever the logits are, what comes of them has its structure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.api.logprobs import TokenLogprobs
from engine.api.sampling import SamplingParams
from engine.batch.plan import NOT_FINITE, NOT_FOLLOWED, NewSequence
from engine.model.step.sampler import Sampled, Sampler
from tests.support.structures import ENDS, SIZE, STRUCTURES, check, grammar, ids_of, text_of

GREEDY = SamplingParams(temperature=0)
PLAIN = [GREEDY, SamplingParams(top_p=0.9), SamplingParams(top_k=5, repetition_penalty=1.2)]
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_k=st.sampled_from([0, 1, 7]),
    top_p=st.sampled_from([0.5, 1.0]),
    min_p=st.sampled_from([0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.5]),
    frequency_penalty=st.sampled_from([0.0, 1.0]),
    logit_bias=st.sampled_from([(), ((ENDS[0], -100), (ord('"'), 50)), ((ENDS[1], 100),)]),
    min_tokens=st.sampled_from([0, 3]),
    ignore_eos=st.booleans(),
    logprobs=st.sampled_from([None, 2]),
)


def new(params: SamplingParams, stated: object = None, output: Sequence[int] = ()) -> NewSequence:
    ends = () if params.ignore_eos else ENDS
    one = NewSequence(0, (9, *output), 1, params, 5, (*ends, *params.stop_token_ids), ())
    return one if stated is None else replace(one, grammar=grammar(stated))


class Replies:
    """Replies of some sequences, step by step."""

    def __init__(self, *sequences: NewSequence) -> None:
        self._sampler = Sampler(max_num_seqs=len(sequences), vocab_size=SIZE, device="cpu")
        for index, one in enumerate(sequences):
            self._sampler.add(index, one)
        self._lengths = np.array([len(one.token_ids) for one in sequences])
        self.said: list[list[int]] = [[] for _ in sequences]

    def step(self, logits: Tensor, rows: Sequence[int] | None = None) -> Sampled:
        index = np.arange(len(self.said)) if rows is None else np.array(rows)
        sampled = self._sampler.sample(logits, index, self._lengths[index])
        self._lengths[index] += 1
        for at, token in zip(index.tolist(), sampled.token_ids.tolist(), strict=True):
            self.said[at].append(token)
        return sampled


@settings(max_examples=60)
@given(stated=STRUCTURES, params=PARAMS, seed=st.integers(0, 2**32))
def test_whatever_the_logits_are_a_reply_has_its_structure(
    stated: dict[str, Any], params: SamplingParams, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    replies = Replies(new(params, stated))
    for _ in range(2_000):
        replies.step(torch.randn(1, SIZE, generator=draw) * 6)
        if replies.said[0][-1] in ENDS:
            break
    check(stated, text_of(replies.said[0]))


@settings(max_examples=20)
@given(stated=STRUCTURES, seed=st.integers(0, 2**32))
def test_rows_without_a_structure_are_as_they_would_be_alone(
    stated: dict[str, Any], seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    free = [new(params) for params in PLAIN]
    alone, beside = Replies(*free), Replies(new(GREEDY, stated), *free)
    for _ in range(5):
        logits = torch.randn(1 + len(free), SIZE, generator=draw)
        beside.step(logits.clone())
        alone.step(logits[1:].clone())
    assert alone.said == beside.said[1:]


def test_the_likeliest_of_what_is_allowed_is_taken() -> None:
    logits = torch.zeros(1, SIZE)
    logits[0, ord("x")], logits[0, ord("n")] = 9.0, 1.0
    replies = Replies(new(GREEDY, {"choice": ["yes", "no"]}))
    replies.step(logits)
    assert replies.said == [[ord("n")]]
    biased = Replies(
        new(SamplingParams(temperature=0, logit_bias=((ord("y"), 5),)), {"regex": "[ny]"})
    )
    biased.step(logits.clone())
    assert biased.said == [[ord("y")]]


def test_log_probabilities_are_those_of_the_model() -> None:
    logits = torch.randn(1, SIZE, generator=torch.Generator().manual_seed(1))
    expected = logits[0].log_softmax(-1)
    replies = Replies(new(SamplingParams(temperature=0, logprobs=1), {"choice": ["yes"]}))
    (found,) = replies.step(logits.clone()).logprobs
    assert isinstance(found, TokenLogprobs)
    (token,) = replies.said[0]
    assert found.logprob == pytest.approx(float(expected[token]), abs=1e-5)
    assert found.top[0][0] == int(logits[0].argmax())


def test_min_tokens_and_ignore_eos_do_not_break_a_structure() -> None:
    draw = torch.Generator().manual_seed(3)
    for params in (
        SamplingParams(min_tokens=6, logit_bias=((ENDS[0], 100),)),
        SamplingParams(ignore_eos=True, logit_bias=((ENDS[0], 100),)),
    ):
        replies = Replies(new(params, {"regex": "a{0,4}"}))
        for _ in range(5):
            replies.step(torch.randn(1, SIZE, generator=draw))
        assert replies.said[0][:4] == ids_of("aaaa")
        assert replies.said[0][4] in ENDS


def test_until_min_tokens_a_structure_does_not_end_early() -> None:
    logits = torch.zeros(1, SIZE)
    logits[0, ENDS[0]] = 9.0
    replies = Replies(new(SamplingParams(temperature=0, min_tokens=2), {"regex": "a{0,4}"}))
    for _ in range(3):
        replies.step(logits.clone())
    assert replies.said == [[*ids_of("aa"), ENDS[0]]]


def test_a_sequence_goes_on_behind_the_output_that_it_has() -> None:
    logits = torch.zeros(1, SIZE)
    replies = Replies(new(GREEDY, {"choice": ["yes", "no"]}, ids_of("ye")))
    replies.step(logits.clone())
    replies.step(logits.clone())
    assert replies.said == [[ord("s"), ENDS[0]]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("token", [ord("y"), ord("x")])
def test_logits_that_are_not_finite_are_no_token(bad: float, token: int) -> None:
    """Also where they stand at a token that the structure forbids."""
    logits = torch.zeros(2, SIZE)
    logits[0, token] = bad
    replies = Replies(new(GREEDY, {"regex": "y+"}), new(GREEDY, {"regex": "y+"}))
    replies.step(logits)
    assert replies.said == [[NOT_FINITE], [ord("y")]]


def test_a_structure_that_cannot_be_followed_ends_its_row_alone() -> None:
    replies = Replies(
        new(GREEDY, {"choice": ["yes"]}, ids_of("n")), new(GREEDY, {"choice": ["no"]})
    )
    for _ in range(2):
        sampled = replies.step(torch.zeros(2, SIZE))
    assert replies.said == [[NOT_FOLLOWED] * 2, ids_of("no")]
    assert sampled.waited >= 0


def test_rows_come_and_go() -> None:
    """A row's mask waits for the step that needs it."""
    first, second = new(GREEDY, {"regex": "xy"}), new(GREEDY, {"regex": "ab"})
    replies = Replies(first, new(GREEDY), second)
    zeros = torch.zeros(3, SIZE)
    replies.step(zeros[:2].clone(), [0, 2])
    replies.step(zeros[:1].clone(), [2])
    replies.step(zeros[:2].clone(), [1, 0])
    replies._sampler.remove(2)
    replies._sampler.add(2, new(GREEDY, {"regex": "q"}))
    replies.step(zeros[:1].clone(), [2])
    assert replies.said == [ids_of("xy"), [0], ids_of("abq")]


def test_a_step_without_structures_waits_for_none() -> None:
    replies = Replies(new(GREEDY), new(GREEDY, {"regex": "a"}))
    assert replies.step(torch.zeros(1, SIZE), [0]).waited == 0.0
    assert replies.step(torch.zeros(1, SIZE), [1]).waited > 0.0
