"""Prompts before decodes, against timelines worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.timeline import Timeline


def test_prompts_interrupt_whenever_one_can_be_admitted() -> None:
    """vLLM V0: a step of prompts if the head of the queue fits, else a step of decodes. Three
    places, 12 prompt tokens a step.

    | request | prompt | outputs | arrives      |
    | a b c   | 5 6 4  | 4 2 3   | before step 1 |
    | d       | 8      | 2       | before step 4 |
    | e f     | 20 3   | 2 3     | before step 6 |
    | g       | 1      | 3       | before step 9 |

    1: a and b, 11 tokens; c's 4 are too many. 2: c; a and b stand still.
    3: all three; b ends. 4: d has b's place; a and c stand still. 5: a, c, d; c and d end.
    6: e, longer than a step, in chunks of 12. 7: its other 8, and f; a stands still.
    8: a, e, f; a and e end. 9: g; f stands still. 10: f and g; f ends. 11: g.
    """
    line = Timeline(
        policy="prefill_first",
        waiting_served_ratio=0.0,
        max_num_seqs=3,
        max_num_batched_tokens=12,
    )
    line.arrive((5, 4), (6, 2), (4, 3))
    assert line.step() == "A5 B6"
    assert line.why == "no budget: its 4 tokens must run in one step, 1 are left"
    assert line.steps(2) == ["C4", "a b c"]
    assert line.ended == "b"
    line.arrive((8, 2))
    assert line.steps(2) == ["D8", "a c d"]
    assert line.ended == "bcd"
    line.arrive((20, 2), (3, 3))
    assert line.step() == "E12"
    assert line.why == "no budget: the step's 12 tokens are used up"
    assert line.steps(2) == ["E8 F3", "a e f"]
    assert line.ended == "abcde"
    line.arrive((1, 3))
    assert line.steps(3) == ["G1", "f g", "g"]
    assert line.ended == "abcdefg"
    line.engine.finish()


def test_prompts_interrupt_when_enough_wait_or_for_too_long() -> None:
    """TGI's router: those that wait interrupt n that run when they are at least
    floor(0.5 * n), or when those got 3 tokens since the last prompts, the one that prompts give
    included; after an interruption comes a step of decodes. 16 prompt tokens a step.

    | request | prompt  | outputs | arrives      |
    | a b c d | 4 5 6 2 | 9 7 5 6 | before step 1 |
    | e f     | 3 3     | 3 2     | before step 3 |
    | g       | 2       | 4       | before step 6 |
    | h       | 1       | 2       | before step 9 |
    | i       | 1       | 1       | before step 12 |

    1: a, b, c: 15 tokens; d's 2 are too many. 2: d interrupts, 1 of floor(1.5) = 1.
    3: all four, for it is their turn. 4: e and f interrupt, 2 of 2. 5: all six; f has 2 and ends.
    6: five run, 2 should wait and g is one; they got 2 tokens. Decodes; e has 3 and ends.
    7: they got 3 tokens: g interrupts. 8: a, b, c, d, g; c has 5 and ends.
    9: 1 of 2 waits. Decodes; d has 6 and ends. 10: 3 tokens: h interrupts.
    11: a, b, g, h; b, g and h end. 12: a alone, floor(0.5) = 0: i interrupts. 13, 14: a.
    """
    line = Timeline(
        policy="prefill_first",
        waiting_served_ratio=0.5,
        max_waiting_tokens=3,
        max_num_batched_tokens=16,
    )
    line.arrive((4, 9), (5, 7), (6, 5), (2, 6))
    assert line.steps(2) == ["A4 B5 C6", "D2"]
    line.arrive((3, 3), (3, 2))
    assert line.step() == "a b c d"
    assert line.why == "decodes go on: prompts went before them in the last step"
    assert line.steps(2) == ["E3 F3", "a b c d e f"]
    line.arrive((2, 4))
    assert line.step() == "a b c d e"
    assert line.why == "decodes go on: 1 wait, 2 would interrupt the 5 that run, else 1 more steps"
    assert line.ended == "ef"
    assert line.steps(2) == ["G2", "a b c d g"]
    line.arrive((1, 2))
    assert line.steps(3) == ["a b d g", "H1", "a b g h"]
    assert line.ended == "bcdefgh"
    line.arrive((1, 1))
    assert line.steps(3) == ["I1", "a", "a"]
    assert line.ended == "abcdefghi"
    line.engine.finish()


def test_no_prompt_joins_an_interruption_that_takes_several_steps() -> None:
    """Or prompts longer than a step would follow each other, and no decode between them."""
    line = Timeline(
        policy="prefill_first", waiting_served_ratio=0.5, max_num_batched_tokens=8, max_num_seqs=8
    )
    line.arrive((2, 5))
    assert line.step() == "A2"
    line.arrive((12, 2), (12, 2))
    assert line.step() == "B8"
    assert line.why == "no budget: the step's 8 tokens are used up"
    assert line.step() == "B4"
    assert line.why == "decodes go on after the prompts that are being computed"
    assert line.steps(4) == ["a b", "C8", "C4", "a c"]
    line.engine.finish()


def test_who_cannot_be_admitted_does_not_hold_up_decodes() -> None:
    """4 blocks of 4: b needs 3 and waits for a's."""
    line = Timeline(policy="prefill_first", num_blocks=4, waiting_served_ratio=0.0)
    line.arrive((6, 3), (9, 2))
    assert line.steps(3) == ["A6", "a", "a"]
    assert line.why == "no blocks: it needs 3, 2 of 4 are free for it"
    assert line.steps(2) == ["B9", "b"]
    line.engine.finish()


@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 30), st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=20
    ),
    budget=st.integers(4, 24),
    ratio=st.sampled_from((0.0, 0.3, 1.2)),
    depth=st.sampled_from((1, 2)),
)
@settings(max_examples=50)
def test_a_step_is_of_prompts_or_of_decodes(
    shapes: list[tuple[int, int, int]], budget: int, ratio: float, depth: int
) -> None:
    """Also when blocks run out, and with prompts that are longer than a step."""
    line = Timeline(
        policy="prefill_first",
        num_blocks=24,
        max_num_seqs=4,
        max_num_batched_tokens=budget,
        waiting_served_ratio=ratio,
        depth=depth,
    )
    for prompt, outputs, steps in shapes:
        line.arrive((prompt, outputs))
        line.steps(steps)
    line.engine.finish()
    for plan in line.engine.runner.plans:
        assert len({row.prefill for row in plan.rows}) == 1


def test_the_count_starts_anew_with_the_policy() -> None:
    line = Timeline(policy="prefill_first", waiting_served_ratio=5.0, max_waiting_tokens=4)
    line.arrive((1, 20))
    line.steps(3)
    line.turn(policy="orca")
    line.step()
    line.turn(policy="prefill_first")
    line.arrive((1, 1))
    assert line.steps(5) == ["a", "a", "a", "a", "B1"]
    line.engine.finish()


@pytest.mark.parametrize("patience", [1, 2, 5])
def test_nobody_waits_longer_than_the_knob_says(patience: int) -> None:
    """One that runs and one that waits, at a ratio that is never reached."""
    line = Timeline(policy="prefill_first", waiting_served_ratio=10.0, max_waiting_tokens=patience)
    line.arrive((1, 20))
    line.step()
    line.arrive((1, 1))
    steps = line.steps(7)
    assert steps.index("B1") == max(patience - 1, 0)
    line.engine.finish()
