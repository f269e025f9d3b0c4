"""Iteration-level scheduling, against a timeline worked out by hand."""

from __future__ import annotations

import pytest

from tests.support.harness import states_of
from tests.support.timeline import Timeline


def test_the_batch_is_formed_anew_at_each_step() -> None:
    """Orca, Algorithm 1: `Select` takes requests by arrival while there are places (3 here) and
    while slots for prompt and `max_tokens` of all can be reserved: 8 blocks of 4 tokens. A request
    runs its whole prompt in its first iteration and one token in each other; 16 tokens a step.

    | request | prompt | outputs | blocks reserved | arrives      |
    | a b c d | 5 9 6 2 | 3 4 3 2 | 2 4 3 1       | before step 1 |
    | e f     | 14 3    | 2 2     | 4 2           | before step 5 |
    | g       | 16      | 2       | 5             | before step 7 |
    | h       | 1       | 3       | 1             | before step 10 |

    1: a and b, 14 tokens, 6 blocks; c's 6 tokens are too many.
    2, 3: a and b. c's tokens would fit, but it needs 3 of the 2 blocks left; d, which would fit,
       does not overtake it. a ends with 3 outputs: 4 blocks are free.
    4: b, c (3 blocks) and d (1). b ends with 4 outputs: 4 blocks are free.
    5: c, d and e, whose 14 tokens are what two decodes leave of 16. f has no place. d ends.
    6: c and e, which hold 7 blocks: f, which needs 2, waits. Both end.
    7: f. g's 16 tokens must run whole, and 13 are left.
    8: f, and no step would hold g whole beside it: 15 of its tokens. f ends. 9: the last of them.
    10: g and h; g ends. 11, 12: h.
    """
    line = Timeline(policy="orca", num_blocks=8, max_num_seqs=3, max_num_batched_tokens=16)
    line.arrive((5, 3), (9, 4), (6, 3), (2, 2))
    assert line.step() == "A5 B9"
    assert line.why == "no budget: its 6 tokens must run in one step, 2 are left"
    assert line.steps(2) == ["a b", "a b"]
    assert line.why == "no blocks: it needs 3, 2 of 8 are free for it"
    assert line.ended == "a"
    assert line.step() == "b C6 D2"
    assert line.ended == "ab"
    line.arrive((14, 2), (3, 2))
    assert line.step() == "c d E14"
    assert line.why == "no slot: 3 of 3 are taken"
    assert line.step() == "c e"
    assert line.why == "no blocks: it needs 2, 1 of 8 are free for it"
    assert line.ended == "abcde"
    line.arrive((16, 2))
    assert line.step() == "F3"
    assert line.why == "no budget: its 16 tokens must run in one step, 13 are left"
    assert line.steps(2) == ["f G15", "G1"]
    line.arrive((1, 3))
    assert line.steps(3) == ["g H1", "h", "h"]
    assert line.ended == "abcdefgh"
    line.engine.finish()
    assert line.engine.snapshot().totals.preemptions == 0


def test_reserved_slots_are_a_state_of_their_own_until_they_are_filled() -> None:
    """a: 6 + 7 tokens, 4 blocks; two hold its prompt, and each fourth output fills another."""
    line = Timeline(policy="orca", num_blocks=6)
    line.arrive((6, 7))
    states = []
    for _ in range(7):
        line.step()
        states.append("".join(sorted(states_of(line.engine.snapshot().blocks))))
    # Tokens: 6, 7, 8 in two blocks, 9 to 12 in three; the last output is never stored.
    assert states == ["ffrruu"] * 3 + ["ffruuu"] * 3 + ["ffffff"]
    blocks = line.engine.snapshot().blocks
    assert (blocks.reserved, blocks.free) == (0, 6)


@pytest.mark.parametrize("depth", [1, 2])
def test_nobody_is_ever_preempted(depth: int) -> None:
    """The workload that makes `stall_free` preempt."""
    preemptions = {}
    for policy in ("orca", "stall_free"):
        line = Timeline(policy=policy, num_blocks=12, depth=depth)
        line.arrive(*[(3 + i % 4, 4 + 5 * (i % 3)) for i in range(20)])
        line.engine.finish()
        preemptions[policy] = line.engine.snapshot().totals.preemptions
    assert preemptions["orca"] == 0 < preemptions["stall_free"]


def test_equal_prefixes_are_still_shared() -> None:
    line = Timeline(policy="orca", num_blocks=8, prefix_caching=True)
    line.engine.submit("a", list(range(8)), 4)
    line.engine.submit("b", list(range(9)), 3)
    line.step()
    line.engine.finish()
    line.engine.submit("c", list(range(9)), 3)
    line.step()
    assert line.engine.records[-1].prefix_hit_tokens == 8
    assert line.engine.pool.num_reserved == 0
    line.engine.finish()


def test_requests_of_another_policy_are_served_without_a_reservation() -> None:
    line = Timeline(num_blocks=8)
    line.arrive((3, 20))
    line.step()
    line.turn(policy="orca")
    line.arrive((4, 12), (4, 4))
    assert line.step() == "a B4 C4"
    assert line.engine.pool.num_reserved == 4
    line.engine.finish()
