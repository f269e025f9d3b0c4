"""Request-level batching, against timelines worked out by hand."""

from __future__ import annotations

import pytest

from engine.api.lifecycle import FinishReason
from tests.support.harness import CoreHarness
from tests.support.timeline import Timeline


def test_batches_of_three_run_until_the_longest_ends() -> None:
    """FasterTransformer, and `generate`: one padded pass over the prompts of the batch gives each
    its first token; then every member has a place in every step until the last one has ended.

    | request | prompt | outputs | arrives      |
    | a b c   | 5 2 3  | 4 2 6   | before step 1 |
    | d       | 4      | 1       | before step 2 |
    | e       | 1      | 3       | before step 5 |
    | f       | 6      | 2       | before step 7 |

    1: prompts 5, 2, 3 filled up to 5, 5, 5: 5 tokens of padding. First tokens.
    2: all three; b has its 2 outputs and ends.
    3, 4: a and c, and b's place as a bubble; a has 4 outputs and ends.
    5, 6: c and two bubbles; c has 6 outputs and ends, and with it the batch.
    Two wait, of three: nothing runs until f comes.
    7: prompts 4, 1, 6 filled up to 6: 2 + 5 = 7 of padding; d ends with its first token.
    8: e and f, and d as a bubble; f ends.
    9: e and two bubbles; e ends.
    """
    line = Timeline(policy="static", static_batch_size=3, static_fill="full", max_num_seqs=4)
    line.arrive((5, 4), (2, 2), (3, 6))
    assert line.step() == "A5 B2 C3 pad5"
    line.arrive((4, 1))
    assert line.step() == "a b c"
    assert line.ended == "b"
    assert line.why == "batch 1/3, until the batch before has ended"
    assert line.steps(2) == ["a c bubble1"] * 2
    assert line.ended == "ab"
    line.arrive((1, 3))
    assert line.steps(2) == ["c bubble2"] * 2
    assert line.ended == "abc"
    assert line.steps(2) == ["", ""]
    assert line.why == "batch 2/3"
    assert (line.engine.core.idle, line.engine.core.next_wake) == (True, None)
    line.arrive((6, 2))
    assert line.step() == "D4 E1 F6 pad7"
    assert line.steps(2) == ["e f bubble1", "e bubble2"]
    assert line.ended == "abcdef"
    records = line.engine.records
    assert [r.padding_tokens for r in records] == [5, 0, 0, 0, 0, 0, 7, 0, 0]
    assert [r.bubble_tokens for r in records] == [0, 0, 1, 1, 2, 2, 0, 1, 2]
    line.engine.finish()


def test_with_fill_idle_a_lone_request_is_served() -> None:
    """a runs alone, and those that come meanwhile are the next batch, though it is not full.

    1: a's prompt, nothing to pad. 2, 3: a alone. It has 3 outputs.
    4: b and c, filled up to 4: 2 of padding; b ends. 5: c and b's bubble.
    """
    line = Timeline(policy="static", static_batch_size=4)
    line.arrive((3, 3))
    assert line.step() == "A3"
    line.arrive((2, 1), (4, 2))
    assert line.steps(2) == ["a", "a"]
    assert line.why == "batch 2/4, until the batch before has ended"
    assert line.steps(2) == ["B2 C4 pad2", "c bubble1"]
    line.engine.finish()


def test_decoding_begins_when_all_prompts_are_computed() -> None:
    """8 tokens a step: prompts 6, 5 and 9 take three. a's token waits for c's last prompt token.

    1: 6 of a, 2 of b; a and b are padded once, by 3 and 4. 2: 3 of b, 5 of c. 3: 4 of c.
    4: all three decode; all end.
    """
    line = Timeline(policy="static", static_batch_size=3, max_num_batched_tokens=8)
    line.arrive((6, 2), (5, 2), (9, 2))
    assert line.steps(4) == ["A6 B2 pad7", "B3 C5", "C4", "a b c"]
    line.engine.finish()


def test_a_batch_is_as_large_as_slots_and_blocks_allow() -> None:
    """8 blocks of 4: a (8 + 4 tokens) and b (4 + 4) reserve 3 and 2, c (9 + 4) would need 4."""
    line = Timeline(policy="static", static_batch_size=3, num_blocks=8)
    line.arrive((8, 4), (4, 4), (9, 4))
    assert line.step() == "A8 B4 pad4"
    assert line.engine.pool.num_used == 5
    assert line.engine.pool.num_reserved == 2
    line.turn(max_num_seqs=1)
    line.arrive((1, 1))
    assert line.steps(3) == ["a b", "a b", "a b"]
    assert line.why == "batch 1/1, until the batch before has ended"
    assert line.steps(5) == ["C9", "c", "c", "c", "D1"]
    line.engine.finish()


def test_a_full_batch_is_no_larger_than_the_slots() -> None:
    line = Timeline(policy="static", static_batch_size=9, static_fill="full", max_num_seqs=2)
    line.arrive((3, 1))
    assert line.step() == ""
    assert line.why == "batch 1/2"
    line.arrive((3, 1))
    assert line.step() == "A3 B3"
    line.engine.finish()


def test_a_full_batch_is_no_larger_than_the_queue() -> None:
    """Or it would never fill: what comes next is refused."""
    line = Timeline(policy="static", static_batch_size=3, static_fill="full", queue_limit=2)
    line.arrive((3, 1))
    assert line.step() == ""
    assert line.why == "batch 1/2"
    states = {state.name: state for state in line.engine.snapshot().knobs}
    size = states["static_batch_size"]
    assert (size.requested, size.effective, size.note) == (3, 2, "queue_limit allows no more")
    line.arrive((3, 1))
    assert line.step() == "A3 B3"
    line.engine.finish()


@pytest.mark.parametrize("depth", [1, 2])
def test_one_that_was_preempted_does_not_wait_for_company_again(depth: int) -> None:
    engine = CoreHarness(policy="static", static_batch_size=2, static_fill="full", depth=depth)
    for name in "ab":
        engine.submit(name, [1, 2, 3], 6)
    engine.step()
    engine.preempt("b")
    engine.finish()
    assert {end.reason for end in engine.ends.values()} == {FinishReason.LENGTH}


@pytest.mark.parametrize("way", ["abort", "stop"])
def test_a_member_that_is_ended_from_outside_keeps_its_place_too(way: str) -> None:
    line = Timeline(policy="static", static_batch_size=3)
    line.arrive((3, 4), (3, 4), (3, 4))
    line.steps(2)
    if way == "abort":
        line.engine.core.abort("b")
    else:
        line.engine.stop("b", 1)
    assert line.engine.pool.num_used == 6
    assert line.steps(2) == ["a c bubble1"] * 2
    line.engine.finish()


def test_another_policy_finds_the_slots_when_the_batch_has_ended() -> None:
    """Requests keep the terms that they were admitted on: bubbles go on, beside new rows."""
    line = Timeline(policy="static", static_batch_size=2, max_num_seqs=3)
    line.arrive((3, 1), (3, 4))
    assert line.step() == "A3 B3"
    line.turn(policy="stall_free")
    line.arrive((5, 2), (5, 2))
    assert line.step() == "b C5 bubble1"
    assert line.why == "no slot: 3 of 3 are taken"
    assert line.steps(3) == ["b c bubble1", "b D5 bubble1", "d"]
    line.engine.finish()


def test_what_another_policy_left_ends_first() -> None:
    line = Timeline(max_num_batched_tokens=8, max_num_seqs=3)
    line.arrive((2, 4), (12, 2))
    assert line.step() == "A2 B6"
    line.turn(policy="static", static_batch_size=2)
    line.arrive((3, 1), (3, 1))
    assert line.steps(2) == ["B6", "a b"]
    assert line.why == "batch 2/2, until the requests that run have ended"
    assert line.steps(3) == ["a", "a", "C3 D3"]
    line.engine.finish()
