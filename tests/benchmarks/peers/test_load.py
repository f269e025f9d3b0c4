"""Loads: reproducible, the same for all, new in every round."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import pairwise

import pytest

from benchmarks.peers.load import RECIPES, Load, Recipe

CHAT = Recipe("chat", 400, 12, 4, shared_tokens=8, is_poisson=True)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_a_load_is_what_its_recipe_says(recipe: Recipe) -> None:
    load = recipe.make(0, 10.0)
    assert len(load.prompts) == len(load.arrivals) == recipe.sequences
    assert {len(prompt) for prompt in load.prompts} == {recipe.prompt_tokens}
    assert len({prompt[: recipe.shared_tokens] for prompt in load.prompts}) == 1
    assert len(set(load.prompts)) == recipe.sequences
    assert load.is_batch is not (recipe.is_poisson)


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


def test_a_load_survives_json() -> None:
    load = CHAT.make(0, 5.0)
    assert Load.from_json(json.loads(json.dumps(asdict(load)))) == load


def test_lengths_count_outputs() -> None:
    assert Load(((1, 2, 3), (1,)), 4, (0.0, 0.0)).lengths == (7, 5)
