"""Sampling by the kernels, under Triton's interpreter, against the sampler that torch computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton")

from triton.runtime.interpreter import GridExecutor

from engine.api.sampling import SamplingParams
from engine.batch.plan import NewSequence
from engine.model.gpu.sampler import DeviceSampler
from engine.model.step.draw import TorchDraw
from engine.model.step.logprobs import RawLogprobs
from engine.model.step.sampler import Sampler
from engine.triton.sampling_fields import CANDIDATES, chunk_of

MAX_SEQS = 6
# No multiple of a chunk or of a tile; and more than all candidates.
VOCABS = (300, 5003)
# The largest with chunks of 128 logits. Then those of Qwen 2.5, Gemma 2, Gemma 3 1B and Gemma 3:
# chunks of 256, of which the third has as many as there is room for, and chunks of 512.
SMALL, LARGE = 131_072, (152_064, 256_000, 262_144, 262_208)


@dataclass
class Both:
    """The sampler under test and the one that says what is right, with the same sequences."""

    vocab_size: int

    def __post_init__(self) -> None:
        sizes = {"max_num_seqs": MAX_SEQS, "vocab_size": self.vocab_size, "device": "cpu"}
        self.kernels = DeviceSampler(**sizes)  # type: ignore[arg-type]
        self.torch = Sampler(**sizes, draw=TorchDraw())  # type: ignore[arg-type]
        self.latest = torch.full((MAX_SEQS,), -7, dtype=torch.int32)

    def add(self, index: int, new: NewSequence) -> None:
        upload = self.kernels.add(index, new)
        if upload is not None:
            upload()
        self.torch.add(index, new)

    def remove(self, index: int) -> None:
        self.kernels.remove(index)
        self.torch.remove(index)

    def sample(self, logits: Tensor, index: list[int], lengths: list[int]) -> list[int]:
        """The tokens, the same by both."""
        rows, so_far = np.array(index), np.array(lengths)
        tokens = self.by_kernels(logits.clone(), rows, so_far)
        expected = self.torch.sample(logits.clone(), rows, so_far)
        assert tokens.tolist() == expected.token_ids.tolist()
        assert self.latest[index].tolist() == tokens.clamp(min=0).tolist()
        return tokens.tolist()

    def by_kernels(self, logits: Tensor, index: np.ndarray, lengths: np.ndarray) -> Tensor:
        tokens = torch.full((len(index),), -9, dtype=torch.int32)
        words = torch.from_numpy(self.kernels.pack(index, lengths))
        before = logits.clone()
        self.kernels.launch(logits, words, tokens, self.latest)
        assert torch.equal(logits.nan_to_num(7.0), before.nan_to_num(7.0))
        return tokens


def logits_of(rng: np.random.Generator, vocab_size: int, kind: str) -> Tensor:
    """A row of some kind."""
    row = rng.normal(0, 3, vocab_size)
    if kind == "flat":
        row = rng.normal(0, 0.05, vocab_size)
    elif kind == "peaked":
        row[rng.integers(vocab_size)] += 40
    elif kind == "ties":
        row = rng.integers(0, 4, vocab_size).astype(float)
    elif kind == "ruled out":
        row[rng.random(vocab_size) < 0.98] = -np.inf
    elif kind == "nan":
        row[rng.integers(vocab_size)] = np.nan
    elif kind == "infinite":
        row[rng.integers(vocab_size)] = np.inf
    elif kind == "nothing":
        row[:] = -np.inf
    return torch.tensor(row, dtype=torch.float32)


KINDS = ("plain", "flat", "peaked", "ties", "ruled out", "nan", "infinite", "nothing")


def params_of(rng: np.random.Generator, vocab_size: int) -> SamplingParams:
    def maybe(value: float, otherwise: float) -> float:
        return value if rng.random() < 0.4 else otherwise

    biased = rng.permutation(vocab_size)[: rng.integers(1, 60)] if rng.random() < 0.3 else ()
    return SamplingParams(
        temperature=maybe(0.0, float(rng.choice([0.1, 0.7, 1.0, 3.0, 50.0]))),
        top_k=int(maybe(rng.choice([1, 2, 20, 100, vocab_size - 1]), 0)),
        top_p=maybe(float(rng.choice([0.01, 0.5, 0.9, 0.999])), 1.0),
        min_p=maybe(float(rng.choice([0.001, 0.05, 0.5, 1.0])), 0.0),
        repetition_penalty=maybe(1.4, 1.0),
        frequency_penalty=maybe(0.9, 0.0),
        presence_penalty=maybe(-0.6, 0.0),
        logit_bias=tuple((int(token), float(rng.choice([-100, -3, 5]))) for token in biased),
        min_tokens=int(rng.integers(0, 4)),
    )


def new_sequence(rng: np.random.Generator, seq: int, vocab_size: int) -> NewSequence:
    tokens = tuple(int(t) for t in rng.integers(0, vocab_size, rng.integers(2, 40)))
    return NewSequence(
        seq,
        tokens,
        int(rng.integers(1, len(tokens) + 1)),
        params_of(rng, vocab_size),
        int(rng.integers(2**63)),
        tuple(int(t) for t in rng.integers(0, vocab_size + 5, 3)) * 2,
        (),
    )


def run(seed: int, vocab_size: int, steps: int) -> None:
    """Sequences come and go; those that are there sample, in any order."""
    rng = np.random.default_rng(seed)
    both = Both(vocab_size)
    lengths: dict[int, int] = {}
    for step in range(steps):
        for index in list(lengths):
            if rng.random() < 0.2:
                both.remove(index)
                del lengths[index]
        for index in range(MAX_SEQS):
            if index not in lengths and rng.random() < 0.6:
                new = new_sequence(rng, 10 * step + index, vocab_size)
                both.add(index, new)
                lengths[index] = len(new.token_ids)
        rows = [int(index) for index in rng.permutation(list(lengths))]
        if rows:
            logits = torch.stack([logits_of(rng, vocab_size, str(rng.choice(KINDS))) for _ in rows])
            both.sample(logits, rows, [lengths[index] for index in rows])
            for index in rows:
                lengths[index] += 1


@pytest.mark.parametrize("vocab_size", VOCABS)
@pytest.mark.parametrize("seed", range(2))
def test_the_tokens_are_those_of_the_other_sampler(seed: int, vocab_size: int) -> None:
    run(seed, vocab_size, 4)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 160))
def test_the_tokens_are_those_of_the_other_sampler_for_long(seed: int) -> None:
    run(seed, VOCABS[seed % 2], 12)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, top_p=0.999),
        SamplingParams(temperature=1.0, top_k=4000),
        SamplingParams(temperature=1.0, top_k=4500, top_p=0.98, min_p=0.5),
        SamplingParams(temperature=50.0, min_p=0.9),
    ],
    ids=["top_p", "top_k", "all", "min_p"],
)
def test_filters_that_leave_more_than_all_candidates_are_exact(params: SamplingParams) -> None:
    vocab_size = VOCABS[1]
    both = Both(vocab_size)
    rng = np.random.default_rng(5)
    logits = logits_of(rng, vocab_size, "flat")
    assert (logits > logits.max() - 1).sum() > CANDIDATES
    found = set()
    for seed in range(3):
        both.add(0, NewSequence(seed, (1,), 1, params, seed, (), ()))
        found.update(both.sample(logits[None], [0], [1]))
        both.remove(0)
    assert len(found) > 1


WAYS: dict[str, tuple[SamplingParams, int]] = {
    "greedy": (SamplingParams(temperature=0, logit_bias=((SMALL + 7, 9.0), (SMALL + 9, 9.0))), 40),
    "drawn": (SamplingParams(temperature=1.0, min_tokens=2), 700),
    "top_k": (SamplingParams(temperature=0.8, top_k=50, top_p=0.9), 700),
    "top_p": (SamplingParams(temperature=1.3, top_p=0.9, min_p=0.1, frequency_penalty=0.4), 700),
    # More are left than all candidates, so that the limits are found in sweeps.
    "many of top_k": (
        SamplingParams(temperature=1.0, top_k=CANDIDATES * 3 // 2, top_p=0.95),
        CANDIDATES * 2,
    ),
    "many of top_p": (SamplingParams(temperature=0.9, top_p=0.99), CANDIDATES * 2),
}
"""A row's parameters, and the number of its likely tokens."""


SWEPT = (LARGE[0], "many of top_p")


def test_the_chunks_of_large_vocabularies() -> None:
    assert [chunk_of(vocab_size) for vocab_size in LARGE] == [(256, 1024)] * 3 + [(512, 1024)]
    assert chunk_of(SMALL) == (128, 1024)


# The interpreter takes up to 10 s for one of them.
@pytest.mark.parametrize(
    ("vocab_size", "way"),
    [
        pytest.param(
            vocab_size,
            way,
            marks=()
            if (vocab_size, way) in (*product(LARGE[-1:], ("greedy", "drawn", "top_k")), SWEPT)
            else pytest.mark.long,
        )
        for vocab_size, way in product(LARGE, WAYS)
    ],
)
def test_large_vocabularies_have_the_tokens_of_the_other_sampler(vocab_size: int, way: str) -> None:
    params, num_likely = WAYS[way]
    rng = np.random.default_rng(num_likely)
    row = rng.normal(-20, 3, vocab_size)
    likely = SMALL + rng.permutation(vocab_size - SMALL)[:num_likely]
    row[likely] = rng.normal(0, 0.3, num_likely)
    row[[SMALL + 7, SMALL + 9]] = -1.0
    both = Both(vocab_size)
    text = tuple(int(token) for token in likely[:20])
    both.add(0, NewSequence(0, text, 12, params, 5, (vocab_size - 1, 3), ()))
    (token,) = both.sample(torch.tensor(row, dtype=torch.float32)[None], [0], [20])
    assert token == SMALL + 7 if way == "greedy" else token in likely


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 104))
def test_large_vocabularies_have_the_tokens_of_the_other_sampler_for_long(seed: int) -> None:
    run(seed, LARGE[seed % len(LARGE)], 2)


def test_a_rows_token_depends_on_that_row_alone() -> None:
    vocab_size = VOCABS[0]
    rng = np.random.default_rng(9)
    params = SamplingParams(temperature=1.3, top_p=0.95, frequency_penalty=0.4)
    mine, row = NewSequence(1, (5, 6, 7), 2, params, 77, (), ()), logits_of(rng, vocab_size, "flat")
    tokens = set()
    for others in range(MAX_SEQS):
        both = Both(vocab_size)
        both.add(others, mine)
        for index in range(others):
            both.add(index, new_sequence(rng, 2 + index, vocab_size))
        logits = torch.stack([logits_of(rng, vocab_size, "plain")] * others + [row])
        tokens.add(both.sample(logits, list(range(others + 1)), [3] * (others + 1))[-1])
    assert len(tokens) == 1


def test_padding_writes_nothing() -> None:
    both = Both(300)
    both.add(2, NewSequence(1, (4,), 1, SamplingParams(temperature=0), 0, (), ()))
    words = np.full((4, both.kernels.pack(np.array([2]), np.array([1])).shape[1]), -1, np.int32)
    words[1] = both.kernels.pack(np.array([2]), np.array([1]))
    tokens = torch.full((4,), -9, dtype=torch.int32)
    logits = torch.randn(4, 300)
    both.kernels.launch(logits, torch.from_numpy(words), tokens, both.latest)
    assert tokens.tolist() == [-9, int(logits[1].argmax()), -9, -9]
    assert both.latest.tolist() == [-7, -7, int(logits[1].argmax()), -7, -7, -7]


@pytest.mark.parametrize("after", [{"repetition_penalty": 2.0}, {"logit_bias": ((4, 0.001),)}, {}])
def test_penalties_of_who_had_the_index_before_are_forgotten(after: dict[str, Any]) -> None:
    both = Both(300)
    greedy = SamplingParams(temperature=0, repetition_penalty=2.0)
    logits = torch.linspace(5, 1, 300)[None]
    both.add(0, NewSequence(1, (9,), 1, greedy, 0, (), ()))
    assert [both.sample(logits, [0], [1 + i])[0] for i in range(2)] == [0, 1]
    both.remove(0)
    both.add(0, NewSequence(2, (9,), 1, SamplingParams(temperature=0, **after), 0, (), ()))
    assert both.sample(logits, [0], [1]) == [0]


@pytest.mark.parametrize("number", [0, 1, 5, 20])
def test_log_probabilities_are_those_of_the_other_sampler(number: int) -> None:
    vocab_size = VOCABS[0]
    rng = np.random.default_rng(number)
    both = Both(vocab_size)
    rows = [3, 0, 5, 1]
    for index in rows:
        params = SamplingParams(
            temperature=1.0, logprobs=None if index == 0 else number, logit_bias=((1, 9.0),)
        )
        both.add(index, NewSequence(index, (1, 2), 2, params, index, (), ()))
    kinds = ("ties", "plain", "nan", "ruled out")
    logits = torch.stack([logits_of(rng, vocab_size, kind) for kind in kinds])
    index = np.array(rows)
    tokens = both.by_kernels(logits, index, np.full(4, 2))
    asking = both.kernels.asking(index)
    assert asking == [(0, number), (2, number), (3, number)]
    found = RawLogprobs(logits, asking).start(tokens).of(tokens.numpy())
    expected = both.torch.sample(logits.clone(), index, np.full(4, 2)).logprobs
    assert [one is None for one in found] == [False, True, True, False]
    for mine, theirs in zip(found, expected, strict=True):
        if mine is not None:
            assert theirs is not None
            assert mine.rank == theirs.rank
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-5)
            assert [token for token, _ in mine.top] == [token for token, _ in theirs.top]
            for one, other in zip(mine.top, theirs.top, strict=True):
                assert one[1] == pytest.approx(other[1], abs=1e-5)


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(GridExecutor, "__call__", lambda *_, **__: None)
    return


@pytest.mark.usefixtures("no_kernels")
def test_a_launch_is_two_kernels_and_nothing_else() -> None:
    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            raise AssertionError(f"{func} was called")

    both = Both(300)
    both.add(0, NewSequence(1, (4,), 1, SamplingParams(top_p=0.5), 0, (), ()))
    words = torch.from_numpy(both.kernels.pack(np.array([0]), np.array([1])))
    logits, tokens = torch.randn(1, 300), torch.zeros(1, dtype=torch.int32)
    with Watch():
        both.kernels.launch(logits, words, tokens, both.latest)
