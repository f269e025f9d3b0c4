from __future__ import annotations

import math
from dataclasses import replace

import pytest

from engine.api.effect import MIN_SAMPLES, Effect
from engine.api.telemetry import Distribution
from tests.widgets.samples import EFFECT
from widgets.panels.knob_history import effect_line, obstacle_text


def since(**changes: object) -> Effect:
    return replace(EFFECT, since=replace(EFFECT.since, **changes))  # type: ignore[arg-type]


def prompts(count: int, tokens: float = 700.0) -> Distribution:
    return Distribution(count, tokens, tokens, tokens)


def test_before_and_since_in_a_line() -> None:
    assert effect_line(EFFECT) == (
        "tok/s 310→402 · TTFT p50 190→240ms · ITL p99 300→60ms · batch 6.1→8"
        " · KV waste 12→3% · TTFT p99 not comparable: 12 samples in 30s before"
        " · TPOT p50 not comparable: 3 samples in 21s since"
    )


@pytest.mark.parametrize(
    ("effect", "why"),
    [
        (since(prompts=prompts(0)), "none came in 21s since"),
        (since(throughput=math.nan, prompts=prompts(0)), "none came in 21s since"),
        (since(throughput=math.nan), "nothing ran in 21s since"),
        (since(prompts=prompts(1)), "1 came in 21s since"),
        (since(prompts=prompts(MIN_SAMPLES - 1)), "4 came in 21s since"),
        (
            replace(EFFECT, before=replace(EFFECT.before, prompts=prompts(2))),
            "2 came in 30s before",
        ),
        (since(underway=18.0), "load 9→18 requests under way"),
        (since(underway=1.2), "load 9→1.2 requests under way"),
        (since(prompts=prompts(9, 40.0)), "prompts of 800→40 tokens"),
    ],
)
def test_too_few_requests_or_another_load_show_no_effect(effect: Effect, why: str) -> None:
    assert obstacle_text(effect) == why
    assert effect_line(effect) == f"not comparable: {why}"


def test_a_load_that_is_nearly_the_same_compares() -> None:
    assert since(underway=17.0, prompts=prompts(MIN_SAMPLES, 1500.0)).obstacle is None


def test_figures_that_come_from_samples_say_of_how_many() -> None:
    assert [(row.name, row.samples) for row in EFFECT.since.rows()] == [
        ("tok/s", None),
        ("TTFT p50", 8),
        ("TTFT p99", 8),
        ("TPOT p50", 3),
        ("ITL p99", 700),
        ("batch", None),
        ("KV waste", None),
    ]


@pytest.mark.parametrize(
    ("effect", "settled"),
    [
        (EFFECT, False),  # three of TPOT, which was known before
        (since(tpot=EFFECT.before.tpot), True),  # of TTFT p99 there were too few before
        (since(tpot=EFFECT.before.tpot, itl=Distribution.of(())), False),
        (since(tpot=EFFECT.before.tpot, underway=18.0), False),
    ],
)
def test_it_is_settled_once_all_that_was_known_is_known_again(
    effect: Effect, settled: bool
) -> None:
    assert effect.is_settled is settled
