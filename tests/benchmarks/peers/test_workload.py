"""Workloads: reproducible, the same for all, new in every round."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import pairwise

import pytest

from benchmarks.peers.workload import RECIPES, Recipe, Workload

CHAT = Recipe("chat", 400, 12, 4, shared_tokens=8, is_poisson=True)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_a_workload_is_what_its_recipe_says(recipe: Recipe) -> None:
    workload = recipe.make(0, 10.0)
    assert len(workload.prompts) == len(workload.arrivals) == recipe.sequences
    assert {len(prompt) for prompt in workload.prompts} == {recipe.prompt_tokens}
    assert len({prompt[: recipe.shared_tokens] for prompt in workload.prompts}) == 1
    assert len(set(workload.prompts)) == recipe.sequences
    assert workload.is_batch is not (recipe.is_poisson)


def test_rounds_share_nothing_and_repeat() -> None:
    one, other = CHAT.make(1, 5.0), CHAT.make(2, 5.0)
    assert one == CHAT.make(1, 5.0)
    assert one.prompts[0][:8] != other.prompts[0][:8]
    assert one.arrivals != other.arrivals


def test_poisson_arrivals_have_their_rate() -> None:
    arrivals = CHAT.make(0, 5.0).arrivals
    assert arrivals[0] == 0.0
    assert list(arrivals) == sorted(arrivals)
    gaps = [b - a for a, b in pairwise(arrivals)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(1 / 5.0, rel=0.2)
    # Of exponential gaps 1/e are longer than their mean.
    assert sum(gap > mean for gap in gaps) / len(gaps) == pytest.approx(0.37, abs=0.07)


def test_without_a_rate_all_come_at_once() -> None:
    assert CHAT.make(0).is_batch


def test_a_workload_survives_json() -> None:
    workload = CHAT.make(0, 5.0)
    assert Workload.from_json(json.loads(json.dumps(asdict(workload)))) == workload


def test_lengths_count_outputs() -> None:
    assert Workload(((1, 2, 3), (1,)), 4, (0.0, 0.0)).lengths == (7, 5)
