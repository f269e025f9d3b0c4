from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from transformers import RepetitionPenaltyLogitsProcessor

from engine.api.sampling import SamplingParams
from engine.batch.plan import NewSequence
from engine.model.step.draw import Draw, KernelDraw, TorchDraw, _invert
from engine.model.step.sampler import Sampler, uniforms
from engine.native import kernels

INF = float("inf")
_draw: Draw | None = None


@pytest.fixture(
    params=["torch", pytest.param("kernel", marks=pytest.mark.needs("avx2"))],
    scope="module",
    autouse=True,
)
def _each_draw(request: pytest.FixtureRequest) -> Iterator[None]:
    """All of this holds whatever draws."""
    global _draw
    _draw = TorchDraw() if request.param == "torch" else KernelDraw(kernels())
    yield
    _draw = None


def make_sampler(max_num_seqs: int, vocab_size: int) -> Sampler:
    return Sampler(max_num_seqs=max_num_seqs, vocab_size=vocab_size, device="cpu", draw=_draw)


def new_sequence(
    params: SamplingParams,
    *,
    prompt: Sequence[int] = (0,),
    output: Sequence[int] = (),
    seed: int = 0,
    suppressed: Sequence[int] = (),
) -> NewSequence:
    tokens = (*prompt, *output)
    return NewSequence(0, tokens, len(prompt), params, seed, tuple(suppressed), ())


def sample(logits: Tensor, sequences: Sequence[NewSequence]) -> list[int]:
    """One step of fresh sequences, one for each row; `logits` then holds the penalised ones."""
    sampler = make_sampler(len(sequences), logits.shape[1])
    for index, new in enumerate(sequences):
        sampler.add(index, new)
    lengths = np.array([len(new.token_ids) for new in sequences])
    sampled = sampler.sample(logits, np.arange(len(sequences)), lengths)
    tokens: list[int] = sampled.token_ids.tolist()
    return tokens


def at(num_outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Index and length of the only sequence, whose prompt is one token."""
    return np.array([0]), np.array([1 + num_outputs])


def draw_by_hand(logits: Sequence[float], params: SamplingParams, seed: int) -> int | None:
    """The sampler's promise with lists, float64 and a full sort; None where rounding decides."""
    top = max(logits)
    weight = [math.exp((x - top) / params.temperature) for x in logits]
    if params.top_k:
        bound = sorted(logits, reverse=True)[min(params.top_k, len(logits)) - 1]
        weight = [w if x >= bound else 0.0 for w, x in zip(weight, logits, strict=True)]
    if params.top_p < 1:
        total, mass, bound = sum(weight), 0.0, INF
        for w, x in sorted(zip(weight, logits, strict=True), reverse=True):
            if abs(mass - params.top_p * total) < 1e-5 * total:
                return None
            if mass >= params.top_p * total:
                break
            mass, bound = mass + w, x
        weight = [w if x >= bound else 0.0 for w, x in zip(weight, logits, strict=True)]
    if any(w and abs(w - params.min_p) < 1e-5 for w in weight):
        return None
    weight = [w if w >= params.min_p else 0.0 for w in weight]

    target = uniform_by_hand(seed, 0) * sum(weight)
    mass = 0.0
    for token, w in enumerate(weight):
        mass += w
        if w and abs(mass - target) < 1e-5 * sum(weight):
            return None
        if mass > target:
            return token
    raise AssertionError("no token reached")


def uniform_by_hand(seed: int, position: int) -> float:
    mask = 2**64 - 1
    golden = 0x9E3779B97F4A7C15

    def mix(z: int) -> int:
        z &= mask
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        return z ^ (z >> 31)

    return (mix(mix(seed + golden) + (position + 1) * golden) >> 11) / 2**53


class TestUniforms:
    @given(st.integers(0, 2**64 - 1), st.integers(0, 2**31))
    def test_they_are_split_mix_64(self, seed: int, position: int) -> None:
        drawn = uniforms(np.array([seed], dtype=np.uint64), np.array([position]))
        assert drawn.tolist() == [uniform_by_hand(seed, position)]

    @pytest.mark.parametrize("by", ["seed", "position"])
    def test_neighbours_are_spread_evenly(self, by: str) -> None:
        many, one = np.arange(50_000), np.full(50_000, 7)
        seeds, positions = (many, one) if by == "seed" else (one, many)
        drawn = uniforms(seeds.astype(np.uint64), positions)
        counts = np.histogram(drawn, bins=50, range=(0, 1))[0]
        assert ((counts - 1000) ** 2 / 1000).sum() < 85.4  # chi-square, 49 degrees, 0.1 %
        assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.015


class TestGreedy:
    def test_temperature_0_is_the_largest_logit(self) -> None:
        logits = torch.randn(40, 300, generator=torch.Generator().manual_seed(0))
        best = logits.argmax(-1).tolist()
        assert sample(logits, [new_sequence(SamplingParams(temperature=0))] * 40) == best

    @pytest.mark.parametrize("temperature", [1e-300, 1e-30, 1e-4])
    def test_temperatures_near_0_approach_it(self, temperature: float) -> None:
        logits = torch.randn(40, 300, generator=torch.Generator().manual_seed(0)) * 50
        best = logits.argmax(-1).tolist()
        params = SamplingParams(temperature=temperature)
        assert sample(logits, [new_sequence(params, seed=s) for s in range(40)]) == best

    def test_sampling_rows_beside_it_change_nothing(self) -> None:
        logits = torch.randn(8, 300, generator=torch.Generator().manual_seed(1))
        best = logits.argmax(-1)
        greedy = SamplingParams(temperature=0)
        other = SamplingParams(temperature=5.0, top_k=9, top_p=0.9, repetition_penalty=2.0)
        mixed = [new_sequence(greedy if row % 2 else other, seed=row) for row in range(8)]
        assert sample(logits, mixed)[1::2] == best[1::2].tolist()


finite = st.floats(-8, 8).map(lambda x: round(x * 8) / 8)  # eighths, so that there are ties


class TestFilters:
    @given(
        st.lists(finite, min_size=2, max_size=300),
        st.builds(
            SamplingParams,
            temperature=st.sampled_from([0.3, 0.9, 1.0, 2.5]),
            top_k=st.integers(0, 40),
            top_p=st.just(1.0) | st.floats(0.05, 0.999),
            min_p=st.just(0.0) | st.floats(0.001, 0.9),
        ),
        st.integers(0, 2**64 - 1),
    )
    def test_a_draw_agrees_with_the_definition(
        self, logits: list[float], params: SamplingParams, seed: int
    ) -> None:
        expected = draw_by_hand(logits, params, seed)
        assume(expected is not None)
        assert sample(torch.tensor([logits]), [new_sequence(params, seed=seed)]) == [expected]

    @pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999])
    def test_nuclei_of_more_than_the_first_candidates(self, top_p: float) -> None:
        """Flat rows of 3,001 logits, whose nucleus is larger than what is sorted first."""
        torch.manual_seed(0)
        params = SamplingParams(top_p=top_p)
        logits = torch.randn(30, 3001).mul(8).round().div(16)
        expected = [draw_by_hand(row.tolist(), params, seed) for seed, row in enumerate(logits)]
        drawn = sample(logits.clone(), [new_sequence(params, seed=s) for s in range(30)])
        decided = [(d, e) for d, e in zip(drawn, expected, strict=True) if e is not None]
        assert len(decided) > 20
        assert all(d == e for d, e in decided)

    @pytest.mark.parametrize(
        ("params", "allowed"),
        [
            (SamplingParams(top_k=2), {1, 4}),
            (SamplingParams(top_k=3), {1, 2, 3, 4}),  # 2 and 3 are equal
            (SamplingParams(top_p=0.01), {1}),
            (SamplingParams(top_p=0.65), {1, 4}),
            (SamplingParams(min_p=0.5), {1, 4}),
            (SamplingParams(min_p=1.0), {1}),
            (SamplingParams(temperature=0.5, min_p=0.3), {1, 4}),
            (SamplingParams(top_k=2, top_p=0.5), {1}),
        ],
    )
    def test_what_each_filter_leaves(self, params: SamplingParams, allowed: set[int]) -> None:
        # Probabilities .05 .4 .12 .12 .3 .01
        logits = torch.tensor([0.05, 0.4, 0.12, 0.12, 0.3, 0.01]).log().repeat(400, 1)
        assert set(sample(logits, [new_sequence(params, seed=s) for s in range(400)])) == allowed

    def test_rows_of_one_batch_keep_their_own_top_k(self) -> None:
        logits = torch.arange(6.0).div(10).repeat(1200, 1)
        sizes = [1 + row % 4 for row in range(1200)]
        rows = [new_sequence(SamplingParams(top_k=k), seed=s) for s, k in enumerate(sizes)]
        drawn = sample(logits, rows)
        for k in range(1, 5):
            found = {token for token, size in zip(drawn, sizes, strict=True) if size == k}
            assert found == set(range(6 - k, 6))

    def test_a_nucleus_of_nearly_everything_stays_within_top_k(self) -> None:
        torch.manual_seed(0)
        logits = torch.randn(2000, 300)
        allowed = logits.topk(10).indices
        params = SamplingParams(temperature=100.0, top_k=10, top_p=1 - 1e-12)
        drawn = sample(logits, [new_sequence(params, seed=s) for s in range(2000)])
        assert (allowed == torch.tensor(drawn)[:, None]).any(-1).all()


class TestDistribution:
    @pytest.mark.parametrize(
        ("params", "expected"),
        [
            (SamplingParams(), [0.05, 0.4, 0.1, 0.15, 0.3]),
            (SamplingParams(top_k=3), [0, 0.4, 0, 0.15, 0.3]),
            (SamplingParams(top_p=0.6), [0, 0.4, 0, 0, 0.3]),
            (SamplingParams(min_p=0.2), [0, 0.4, 0.1, 0.15, 0.3]),
            (SamplingParams(temperature=0.5), [0.05**2, 0.4**2, 0.1**2, 0.15**2, 0.3**2]),
        ],
    )
    def test_tokens_are_drawn_as_often_as_they_are_likely(
        self, params: SamplingParams, expected: list[float]
    ) -> None:
        logits = torch.tensor([0.05, 0.4, 0.1, 0.15, 0.3]).log().repeat(20_000, 1)
        drawn = sample(logits, [new_sequence(params, seed=s) for s in range(20_000)])
        counts = np.bincount(drawn, minlength=5)
        wanted = np.array(expected) / sum(expected) * 20_000
        assert not counts[wanted == 0].any()
        kept = wanted > 0
        assert ((counts[kept] - wanted[kept]) ** 2 / wanted[kept]).sum() < 18.5  # 4 degrees, 0.1 %

    def test_the_tail_of_a_large_vocabulary_keeps_its_share(self) -> None:
        """Half of the probability on one token, half on 100,000 others."""
        logits = torch.zeros(1, 100_000)
        logits[0, 0] = math.log(99_999)
        drawn = sample(
            logits.expand(400, -1).clone(),
            [new_sequence(SamplingParams(), seed=s) for s in range(400)],
        )
        assert 160 < sum(token == 0 for token in drawn) < 240
        assert len(set(drawn)) > 150

    def test_the_ends_of_the_unit_interval_are_tokens_that_can_be_drawn(self) -> None:
        """Rounding must not push a draw past the last weight, or past the vocabulary."""
        torch.manual_seed(0)
        weights = torch.rand(3000, 300)
        weights[1000:2000, 200:] = 0  # the last chunk is empty
        weights[2000:, :50] = 0
        allowed = weights > 0
        last = 299 - allowed.flip(1).int().argmax(1)
        first = allowed.int().argmax(1)
        ends = torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64)
        assert torch.equal(_invert(weights, ends[0].expand(3000)), first)
        assert torch.equal(_invert(weights, ends[1].expand(3000)), last)


class TestIndependence:
    def test_a_row_draws_the_same_alone_and_in_any_company(self) -> None:
        torch.manual_seed(2)
        logits = torch.randn(24, 1000).mul(16).round().div(8)
        choices = [
            SamplingParams(),
            SamplingParams(temperature=0),
            SamplingParams(top_k=5),
            SamplingParams(top_k=700, temperature=3.0),
            SamplingParams(top_p=0.8),
            SamplingParams(top_p=0.99, temperature=4.0, min_p=0.001),
            SamplingParams(min_p=0.1, presence_penalty=1.0),
            SamplingParams(repetition_penalty=1.3),
        ]
        rows = [
            new_sequence(choices[row % len(choices)], seed=row, prompt=[1, 2, 3], output=[row])
            for row in range(24)
        ]
        alone = [sample(logits[row : row + 1].clone(), [rows[row]])[0] for row in range(24)]
        for size in (2, 7, 24):
            order = torch.randperm(24)[:size].tolist()
            together = sample(logits[order].clone(), [rows[row] for row in order])
            assert together == [alone[row] for row in order]

    def test_each_output_position_draws_anew_and_a_seed_repeats(self) -> None:
        params = SamplingParams()
        runs = []
        for _ in range(2):
            sampler = make_sampler(1, 50)
            sampler.add(0, new_sequence(params, seed=5))
            runs.append(
                [int(sampler.sample(torch.zeros(1, 50), *at(n)).token_ids[0]) for n in range(40)]
            )
        assert runs[0] == runs[1]
        assert len(set(runs[0])) > 15


class TestPenalties:
    @pytest.mark.parametrize("penalty", [0.5, 1.0, 1.7])
    def test_repetition_is_that_of_transformers(self, penalty: float) -> None:
        torch.manual_seed(3)
        prompt, output = [3, 3, 9, 40], [7, 9, 21]
        logits = torch.randn(1, 50) * 3
        expected = RepetitionPenaltyLogitsProcessor(penalty)(
            torch.tensor([prompt + output]), logits.clone()
        )
        params = SamplingParams(temperature=0, repetition_penalty=penalty)
        token = sample(logits, [new_sequence(params, prompt=prompt, output=output)])
        assert torch.equal(logits, expected)
        assert token == [int(expected.argmax())]

    def test_presence_and_frequency_see_the_output_only(self) -> None:
        params = SamplingParams(temperature=0, presence_penalty=0.5, frequency_penalty=0.25)
        logits = torch.ones(1, 10)
        sample(logits, [new_sequence(params, prompt=[1, 2], output=[2, 3, 3, 3])])
        assert logits[0].tolist() == [1, 1, 1 - 0.75, 1 - 1.25, 1, 1, 1, 1, 1, 1]

    def test_repetition_comes_before_the_others(self) -> None:
        params = SamplingParams(temperature=0, repetition_penalty=2.0, presence_penalty=1.0)
        logits = torch.tensor([[4.0, -4.0, 4.0]])
        sample(logits, [new_sequence(params, prompt=[0], output=[1])])
        assert logits[0].tolist() == [2.0, -9.0, 4.0]

    def test_a_sampled_token_counts_from_the_next_step_on(self) -> None:
        """And a sequence that comes back after a preemption stands where it stood."""
        params = SamplingParams(temperature=0, frequency_penalty=1.0)
        sampler = make_sampler(2, 4)
        sampler.add(1, new_sequence(params))
        row = torch.tensor([[0.0, 2.5, 1.2, 0.7]])
        tokens: list[int] = []
        for n in range(6):
            if n == 4:
                sampler.remove(1)
                sampler.add(1, new_sequence(params, output=tokens))
            drawn = sampler.sample(row.clone(), np.array([1]), np.array([1 + n])).token_ids
            tokens.append(int(drawn[0]))
        assert tokens == [1, 1, 2, 3, 1, 2]

    def test_they_stay_with_their_row_and_leave_with_it(self) -> None:
        params = SamplingParams(temperature=0, presence_penalty=2.0)
        sampler = make_sampler(2, 5)
        sampler.add(0, new_sequence(params, output=[2]))
        sampler.add(1, new_sequence(SamplingParams(temperature=0), output=[2]))
        logits = torch.zeros(2, 5)
        sampler.sample(logits, np.array([1, 0]), np.array([2, 2]))
        assert logits.tolist() == [[0, 0, 0, 0, 0], [0, 0, -2, 0, 0]]

        sampler.remove(0)
        sampler.add(0, new_sequence(SamplingParams(temperature=0), output=[2]))
        logits = torch.zeros(1, 5)
        sampler.sample(logits, np.array([0]), np.array([2]))
        assert not logits.any()


class TestBias:
    @given(
        st.lists(finite, min_size=8, max_size=40),
        st.dictionaries(st.integers(0, 7), st.integers(-800, 800).map(lambda x: x / 8)),
        st.sampled_from([0.0, 0.7]),
        st.integers(0, 2**64 - 1),
    )
    def test_it_is_as_if_the_model_had_given_other_logits(
        self, logits: list[float], bias: dict[int, float], temperature: float, seed: int
    ) -> None:
        shifted = torch.tensor([[x + bias.get(i, 0.0) for i, x in enumerate(logits)]])
        plain = SamplingParams(temperature=temperature, repetition_penalty=1.5, top_p=0.9)
        biased = plain.override({"logit_bias": bias})
        rows = [
            new_sequence(params, prompt=[1], output=[2], seed=seed) for params in (plain, biased)
        ]
        given_logits = torch.tensor([logits])
        assert sample(given_logits, rows[1:]) == sample(shifted, rows[:1])
        assert torch.equal(given_logits, shifted)  # both hold what the penalties left

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_the_ends_of_the_range_ban_and_force(self, temperature: float) -> None:
        torch.manual_seed(5)
        logits = torch.randn(300, 50) * 4
        likely = logits.mean(0).topk(25).indices.tolist()
        bans = dict.fromkeys(likely, -100)
        params = SamplingParams(temperature=temperature)
        banned = [new_sequence(params.override({"logit_bias": bans}), seed=s) for s in range(300)]
        assert not set(sample(logits.clone(), banned)) & set(likely)
        forced = [
            new_sequence(params.override({"logit_bias": {7: 100}}), seed=s) for s in range(300)
        ]
        assert set(sample(logits, forced)) == {7}

    def test_each_row_has_its_own_and_a_freed_index_none(self) -> None:
        sampler = make_sampler(2, 5)
        greedy = SamplingParams(temperature=0)
        sampler.add(0, new_sequence(greedy.override({"logit_bias": {1: 1.5}})))
        sampler.add(1, new_sequence(greedy.override({"logit_bias": {2: -3, 4: 0.5}})))
        logits = torch.zeros(2, 5)
        chosen = sampler.sample(logits, np.array([1, 0]), np.array([1, 1])).token_ids
        assert logits.tolist() == [[0, 0, -3, 0, 0.5], [0, 1.5, 0, 0, 0]]
        assert chosen.tolist() == [4, 1]
        sampler.remove(0)
        sampler.add(0, new_sequence(greedy))
        logits = torch.zeros(1, 5)
        sampler.sample(logits, *at(0))
        assert not logits.any()

    def test_a_suppressed_token_stays_out_however_biased(self) -> None:
        params = SamplingParams(temperature=0, min_tokens=5, logit_bias=((1, 100),))
        assert sample(torch.zeros(1, 3), [new_sequence(params, suppressed=[1])]) == [0]

    def test_a_nan_is_seen_behind_a_ban(self) -> None:
        params = SamplingParams(temperature=0, logit_bias=((1, -100),))
        assert sample(torch.tensor([[0.0, math.nan, 1.0]]), [new_sequence(params)]) == [-1]


class TestMinTokens:
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_suppressed_tokens_wait_for_min_tokens(self, temperature: float) -> None:
        params = SamplingParams(temperature=temperature, min_tokens=3)
        sampler = make_sampler(1, 6)
        # 600 lies outside the vocabulary: a stop token of the request's own choice.
        sampler.add(0, new_sequence(params, suppressed=[2, 5, 600]))
        row = torch.tensor([[0.0, 1.0, 90.0, 1.0, 0.0, 80.0]])
        tokens = [int(sampler.sample(row.clone(), *at(n)).token_ids[0]) for n in range(4)]
        assert not {2, 5} & set(tokens[:3])
        assert tokens[3] == 2

    def test_a_step_does_not_walk_them(self) -> None:
        class Walked(tuple[int, ...]):
            walks = 0

            def __iter__(self) -> Iterator[int]:
                Walked.walks += 1
                return super().__iter__()

        params = SamplingParams(temperature=0, min_tokens=3)
        sampler, suppressed = make_sampler(1, 6), Walked((2, 5))
        sampler.add(0, replace(new_sequence(params), suppressed=suppressed))
        walks = Walked.walks
        row = torch.tensor([[0.0, 1.0, 90.0, 2.0, 0.0, 80.0]])
        assert [int(sampler.sample(row.clone(), *at(n)).token_ids[0]) for n in range(4)] == [
            *[3] * 3,
            2,
        ]
        assert Walked.walks == walks


class TestNonFinite:
    @pytest.mark.parametrize("bad", [[math.nan], [INF], [-INF, math.nan]])
    @pytest.mark.parametrize(
        "params",
        [
            SamplingParams(temperature=0),
            SamplingParams(),
            SamplingParams(temperature=4.0, top_p=0.999),  # beyond the first candidates
            SamplingParams(top_k=3, top_p=0.5, min_p=0.1, presence_penalty=1.0),
        ],
    )
    def test_a_bad_row_fails_alone(self, bad: list[float], params: SamplingParams) -> None:
        torch.manual_seed(4)
        logits = torch.randn(5, 400)
        rows = [new_sequence(params, seed=s, output=[1]) for s in range(5)]
        good = sample(logits.clone(), rows)
        logits[2, 7 : 7 + len(bad)] = torch.tensor(bad)
        good[2] = -1
        assert sample(logits, rows) == good

    def test_a_row_without_any_finite_logit_fails(self) -> None:
        logits = torch.tensor([[-INF, -INF], [-INF, 0.0]])
        assert sample(logits, [new_sequence(SamplingParams())] * 2) == [-1, 1]

    def test_a_nan_is_seen_behind_a_suppressed_token(self) -> None:
        params = SamplingParams(temperature=0, min_tokens=5)
        logits = torch.tensor([[0.0, math.nan, 1.0]])
        assert sample(logits, [new_sequence(params, suppressed=[1])]) == [-1]

    def test_tokens_that_the_model_rules_out_are_never_drawn(self) -> None:
        logits = torch.full((200, 600), -INF)
        logits[:, 300] = 0.0
        logits[:, 599] = 0.0
        params = SamplingParams(temperature=3.0, top_p=0.999)
        drawn = sample(logits, [new_sequence(params, seed=s) for s in range(200)])
        assert set(drawn) == {300, 599}
