from __future__ import annotations

import numpy as np
import pytest

from app.bench.scripts import PromptMaker


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
