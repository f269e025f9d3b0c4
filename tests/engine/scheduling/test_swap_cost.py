"""The costs of either way of preemption, learned from steps."""

from __future__ import annotations

import pytest

from engine.api.telemetry import StepRecord
from engine.batch.plan import Request, Row
from engine.scheduling.swap_cost import DEFAULT_RATE, SwapCost
from tests.support.harness import make_request, say
from tests.widgets.samples import record

BLOCK, STEPS = 1000, 300
# Seconds of a step: its base, and for each token of a prompt and each byte.
BASE, TOKEN, BYTE = 0.01, 1e-4, 1e-7
DECODE = Row(2, 50, 1, (), True, False)


def take_steps(cost: SwapCost, count: int) -> None:
    """Steps of prompts of all lengths up to 128, some beside a decode that costs nothing."""
    for number in range(1, count + 1):
        rows = [DECODE, prompt(number)] if number % 3 else [prompt(number)]
        cost.planned(number, rows, 0)
        cost.observe(step(number, BASE + TOKEN * length(number)))


def length(number: int) -> int:
    """Tokens of the prompt of a step."""
    return number * 37 % 128 + 1


def prompt(number: int) -> Row:
    return Row(1, 0, length(number), (), False, True)


def step(number: int, seconds: float, **changes: object) -> StepRecord:
    start = 10.0 * number
    changes = {"prefill_rows": 1} | changes
    return record(number, start=start, end=start + seconds, **changes)


def victim(computed: int) -> Request:
    request = make_request(7, range(computed))
    request.num_computed_tokens = computed
    say(request, [1])
    return request


def test_nothing_is_known_before_steps_were_taken() -> None:
    cost = SwapCost(BLOCK, 1 / BYTE)
    take_steps(cost, 7)
    assert cost.compare(victim(100), 25, [], 64) is None
    take_steps(cost, 8)
    assert cost.compare(victim(100), 25, [], 64) is not None


def test_both_ways_by_hand() -> None:
    """50 blocks go out and back; 100 tokens are computed beside what is computed anyhow."""
    cost = SwapCost(BLOCK, 1 / BYTE)
    take_steps(cost, STEPS)
    copying, computing = cost.compare(victim(100), 25, [], 512) or (0.0, 0.0)
    assert copying == pytest.approx(50 * BLOCK * BYTE, rel=1e-6)
    assert computing == pytest.approx(100 * TOKEN, rel=0.05)


def swap(cost: SwapCost, number: int, seconds: float) -> None:
    """A step that decodes, and copies 30 blocks."""
    cost.planned(number, [DECODE], 30)
    cost.observe(step(number, seconds, prefill_rows=0))


def copying(cost: SwapCost) -> float:
    """Seconds that a victim of 25 blocks is thought to take, over what it was said to take."""
    seconds = cost.compare(victim(100), 25, [], 512)
    assert seconds is not None
    return seconds[0] / (50 * BLOCK * BYTE)


def test_the_rate_is_learned_from_steps_that_swap() -> None:
    """From few, though they only decode."""
    cost = SwapCost(BLOCK, 1 / BYTE)
    take_steps(cost, STEPS)
    seen = [copying(cost)]
    for number in range(STEPS + 1, STEPS + 17, 2):  # no multiple of 8 is among them
        swap(cost, number, BASE + 5 * BYTE * BLOCK * 30)
        seen.append(copying(cost))
    assert seen == sorted(seen)
    assert seen[0] == pytest.approx(1, rel=1e-6)
    assert seen[-1] == pytest.approx(5, rel=0.1)


def test_a_copy_that_took_long_by_chance_is_not_believed_for_ever() -> None:
    """Nobody would be swapped then, and nothing would show that it was chance."""
    cost = SwapCost(BLOCK, 1 / BYTE)
    take_steps(cost, STEPS)
    swap(cost, STEPS + 1, 3.0)
    assert copying(cost) > 1.1
    for number in range(STEPS + 2, 10 * STEPS):
        cost.planned(number, [prompt(number)], 0)
        cost.observe(step(number, BASE + TOKEN * length(number)))
    assert copying(cost) == pytest.approx(1, rel=0.05)


def test_without_a_rate_that_of_a_common_link_is_taken() -> None:
    cost = SwapCost(BLOCK)
    take_steps(cost, STEPS)
    copying, _computing = cost.compare(victim(100), 25, [], 512) or (0.0, 0.0)
    assert copying == pytest.approx(50 * BLOCK / DEFAULT_RATE, rel=1e-6)


def test_a_step_that_was_planned_ahead_begins_when_the_one_before_ends() -> None:
    cost = SwapCost(BLOCK, 1 / BYTE)
    for number in range(1, STEPS + 1):
        cost.planned(number, [prompt(number)], 0)
    ended = 10.0
    for number in range(1, STEPS + 1):
        ended += BASE + TOKEN * length(number)
        cost.observe(record(number, start=9.99, end=ended, prefill_rows=1))
    _copying, computing = cost.compare(victim(100), 25, [], 512) or (0.0, 0.0)
    assert computing == pytest.approx(100 * TOKEN, rel=0.05)


def test_a_step_that_failed_teaches_nothing() -> None:
    cost = SwapCost(BLOCK, 1 / BYTE)
    for number in range(1, STEPS + 1):
        cost.planned(number, [prompt(number)], 0)
        cost.observe(step(number, 1.0, error="out of memory"))
    assert cost.compare(victim(100), 25, [], 512) is None
