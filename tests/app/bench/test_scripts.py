from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from app.bench.dataset import Ask
from app.bench.lengths import Exponential, Fixed, Uniform
from app.bench.scripts import Recorded, Synthetic

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
