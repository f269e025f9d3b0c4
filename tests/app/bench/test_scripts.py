from __future__ import annotations

import math
import tracemalloc
from itertools import islice
from typing import Any

import numpy as np
import pytest

from app.bench.dataset import Ask
from app.bench.lengths import Exponential, Fixed, Uniform
from app.bench.scripts import PromptMaker, Recorded, Synthetic, arrivals

VOCAB = 500


def synthetic(**fields: Any) -> Synthetic:
    known: dict[str, Any] = {"num_prompts": 40, "input_len": Uniform(5, 30), "request_rate": 2.0}
    return Synthetic(**(known | {"output_len": Exponential(20, 64)} | fields))


def test_the_cap_is_announced_and_the_true_length_is_where_it_may_end() -> None:
    scripts = list(synthetic().scripts(VOCAB, 0))
    assert len(scripts) == 40
    lengths = {script.first.sampling.min_tokens for script in scripts}
    assert len(lengths) > 10
    assert max(lengths) <= 64
    assert {script.first.sampling.max_tokens for script in scripts} == {64}
    assert {script.first.sampling.temperature for script in scripts} == {0.0}


def test_the_seed_decides_everything() -> None:
    assert list(synthetic().scripts(VOCAB, 3)) == list(synthetic().scripts(VOCAB, 3))
    assert list(synthetic().scripts(VOCAB, 3)) != list(synthetic().scripts(VOCAB, 4))


def test_a_change_of_the_outputs_leaves_prompts_and_arrivals_alone() -> None:
    one = [script.first for script in synthetic().scripts(VOCAB, 0)]
    other = [script.first for script in synthetic(output_len=Fixed(7)).scripts(VOCAB, 0)]
    assert [t.prompt_token_ids for t in one] == [t.prompt_token_ids for t in other]
    assert [t.arrival for t in one] == [t.arrival for t in other]


def test_groups_share_their_prefix_and_nothing_else() -> None:
    workload = synthetic(prefix_len=48, num_prefixes=3, input_len=Fixed(20))
    prompts = [list(script.first.prompt_token_ids) for script in workload.scripts(VOCAB, 0)]
    assert {len(prompt) for prompt in prompts} == {68}
    for group in range(3):
        assert len({tuple(prompt[:48]) for prompt in prompts[group::3]}) == 1
    assert len({tuple(prompt[:16]) for prompt in prompts}) == 3
    assert len({tuple(prompt[48:64]) for prompt in prompts}) == 40


def test_conversations_have_their_turns() -> None:
    workload = synthetic(turns=3, think=1.5, prefix_len=10)
    for script in workload.scripts(VOCAB, 0):
        assert len(script.later) == 2
        assert {turn.think for turn in script.later} == {1.5}
        assert all(5 <= len(turn.token_ids) <= 30 for turn in script.later)
    assert workload.num_requests == 120
    assert workload.most_tokens == 10 + 3 * (30 + 64)


def test_a_recorded_load_keeps_what_the_file_says() -> None:
    asks = [
        Ask(0.0, 12, 5, 9, user="anna", priority=2),
        Ask(1.5, 3, 4, 4, prompt=(7, 8, 9)),
    ]
    workload = Recorded(asks=asks)
    first, second = (script.first for script in workload.scripts(VOCAB, 0))
    assert (first.arrival, len(first.prompt_token_ids)) == (0.0, 12)
    assert (first.sampling.min_tokens, first.sampling.max_tokens) == (5, 9)
    assert (first.origin.user, first.priority) == ("anna", 2)
    assert (second.arrival, second.prompt_token_ids) == (1.5, (7, 8, 9))
    assert (workload.num_requests, workload.most_tokens) == (2, 21)


def test_a_rate_replaces_the_arrivals_of_a_file() -> None:
    asks = [Ask(float(i), 5, 5, 5) for i in range(400)]
    moments = [s.first.arrival for s in Recorded(asks=asks, request_rate=100.0).scripts(VOCAB, 0)]
    assert moments == sorted(moments)
    assert moments[-1] == pytest.approx(4.0, rel=0.2)


def test_100_000_requests_are_never_held_at_once() -> None:
    workload = synthetic(num_prompts=100_000, input_len=Fixed(512), output_len=Fixed(1))
    tracemalloc.start()
    for count, _ in enumerate(workload.scripts(VOCAB, 0), 1):
        if count == 2_000:  # what two thousand do not keep, the rest will not
            break
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20


def gaps(rate: float, burstiness: float, count: int = 20_000) -> np.ndarray:
    moments = list(islice(arrivals(rate, burstiness, np.random.default_rng(0)), count))
    assert moments == sorted(moments)
    return np.diff([0.0, *moments])


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_mean_of_the_rate_and_the_variance_of_the_burstiness(
    burstiness: float,
) -> None:
    drawn = gaps(8.0, burstiness)
    assert drawn.mean() == pytest.approx(1 / 8, rel=0.05)
    # A gamma distribution of shape k has a coefficient of variation of 1 / sqrt(k).
    assert drawn.std() / drawn.mean() == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_burstiness_1_is_a_poisson_process() -> None:
    drawn = np.sort(gaps(2.0, 1.0))
    reached = np.arange(1, len(drawn) + 1) / len(drawn)
    distance = abs(reached - (1 - np.exp(-2.0 * drawn))).max()
    assert distance < 1.63 / math.sqrt(len(drawn))  # Kolmogorov-Smirnov, 1 %


def test_infinite_burstiness_is_a_clock_and_an_infinite_rate_is_a_burst() -> None:
    assert gaps(4.0, math.inf, 5).tolist() == [0.25] * 5
    assert gaps(math.inf, 1.0, 5).tolist() == [0.0] * 5


def maker(vocab_size: int, seed: int = 0) -> PromptMaker:
    return PromptMaker(vocab_size, np.random.default_rng(seed))


def test_prompts_have_their_length_and_ids_of_the_vocabulary() -> None:
    prompts = maker(50)
    for length in (1, 3, 4, 5, 1000, 200_000):
        ids = prompts.make(length)
        assert len(ids) == length
        assert 0 <= min(ids) <= max(ids) < 50


def test_no_two_begin_alike_so_that_the_prefix_cache_finds_nothing_by_chance() -> None:
    prompts = maker(20)  # 20 ** 4 marks
    heads = {tuple(prompts.make(16)[:4]) for _ in range(20_000)}
    assert len(heads) == 20_000


def test_the_same_seed_gives_the_same_prompts() -> None:
    one, same, other = maker(1000), maker(1000), maker(1000, seed=1)
    assert one.make(64) == same.make(64)
    assert one.make(64) != other.make(64)


def test_prompts_share_the_integers_of_one_pool() -> None:
    prompts = maker(1_000_000)
    known = {id(i) for i in prompts._pool}
    assert all(id(i) in known for i in prompts.make(500)[4:])


@pytest.mark.parametrize("vocab_size", [2, 128_256])
def test_any_vocabulary_will_do(vocab_size: int) -> None:
    assert max(maker(vocab_size).make(100)) < vocab_size
