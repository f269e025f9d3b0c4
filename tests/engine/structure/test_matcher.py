"""Whatever is chosen among what is allowed, a complete reply has its structure."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLExecutor

from engine.structure.matcher import Matcher
from tests.support.structures import (
    ENDS,
    NOTHING,
    SIZE,
    SPECIAL,
    STRUCTURES,
    UTF8,
    allowed,
    check,
    grammar,
    ids_of,
    text_of,
)

FOREVER = float("inf")


@settings(max_examples=60)
@given(stated=STRUCTURES, seed=st.integers(0, 2**32))
def test_a_random_walk_ends_in_the_structure(stated: dict[str, object], seed: int) -> None:
    rng, matcher, said = random.Random(seed), grammar(stated).matcher(), []
    for _ in range(2_000):
        token = rng.choice(sorted(allowed(matcher)))
        if token in ENDS:
            break
        said.append(token)
        matcher.accept([token])
    else:
        pytest.fail("the reply does not end")
    check(stated, text_of(said))
    # A preempted sequence is told its output at once.
    assert allowed(grammar(stated).matcher(said)) == allowed(matcher)


@settings(max_examples=40)
@given(stated=STRUCTURES, seed=st.integers(0, 2**32))
def test_neither_nothing_nor_a_special_token_is_part_of_a_text(
    stated: dict[str, object], seed: int
) -> None:
    rng, matcher = random.Random(seed), grammar(stated).matcher()
    for _ in range(30):
        may = allowed(matcher, SIZE)
        assert may
        assert not may & {NOTHING, *SPECIAL}
        token = rng.choice(sorted(may))
        if token in ENDS:
            break
        matcher.accept([token])


def test_all_of_the_tokens_that_end_an_output_end_a_structure() -> None:
    matcher = grammar({"regex": "ab?"}).matcher()
    assert allowed(matcher) == {ord("a")}
    matcher.accept(ids_of("a"))
    assert allowed(matcher) == {ord("b"), *ENDS}
    matcher.accept(ids_of("b"))
    assert allowed(matcher) == {*ENDS}
    matcher.accept([ENDS[1]])
    assert allowed(matcher) == {*ENDS}
    assert not matcher.has_failed


def test_what_is_barred_comes_when_its_time_is_over() -> None:
    barred = {ord("a"): 1.0, ord("b"): 2.0, ENDS[0]: FOREVER, 10**6: FOREVER}
    matcher = grammar({"regex": "[abc]*"}).matcher((), barred)
    seen = []
    for _ in range(3):
        seen.append(allowed(matcher) & {*ids_of("abc")})
        matcher.accept(ids_of("c"))
    assert seen == [{*ids_of("c")}, {*ids_of("ac")}, {*ids_of("abc")}]
    assert ENDS[0] not in allowed(matcher)


def test_what_is_barred_comes_only_where_nothing_else_may() -> None:
    matcher = grammar({"regex": "a{0,3}"}).matcher((), {**dict.fromkeys(ENDS, FOREVER)})
    for _ in range(3):
        assert allowed(matcher) == {ord("a")}
        matcher.accept(ids_of("a"))
    assert allowed(matcher) == {*ENDS}


def test_a_token_is_barred_for_some_tokens_of_output() -> None:
    matcher = grammar({"regex": "[ab]{0,9}"}).matcher(ids_of("a"), {ord("b"): 2, ENDS[0]: 3})
    assert allowed(matcher) == {ord("a"), ENDS[1]}
    matcher.accept(ids_of("a"))
    assert allowed(matcher) == {*ids_of("ab"), ENDS[1]}
    matcher.accept(ids_of("a"))
    assert allowed(matcher) == {*ids_of("ab"), *ENDS}


def test_what_does_not_follow_fails_alone() -> None:
    made = grammar({"choice": ["yes", "no"]})
    lost, sound = made.matcher(ids_of("yx")), made.matcher(ids_of("n"))
    bits = np.full((2, SIZE // 32), -1, np.int32)
    Matcher.fill([lost, sound], bits, LLExecutor(1))
    assert lost.has_failed
    assert not bits[0].any()
    assert bits[1].any()
    assert allowed(sound) == {ord("o")}
    lost.accept(ids_of("e"))
    assert not allowed(lost)


def test_what_takes_too_much_to_find_out_fails() -> None:
    matcher = grammar({"regex": r"(\p{L}{0,1000}\w{0,1000}){0,1000}"}).matcher()
    rng = random.Random(0)
    for _ in range(300):
        may = sorted(allowed(matcher) - {*ENDS})
        if not may:
            break
        matcher.accept([rng.choice(may)])
    assert matcher.has_failed


def test_replies_of_one_grammar_do_not_know_each_other() -> None:
    made = grammar({"choice": ["yes", "no"]})
    one, other = made.matcher(), made.matcher()
    one.accept(ids_of("y"))
    assert allowed(other) == {token for token in range(SIZE) if UTF8[token] in (b"y", b"n", b"yes")}
