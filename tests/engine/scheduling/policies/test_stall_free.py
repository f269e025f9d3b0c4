"""Stall-free chunked prefill, seen in the plans of a whole core."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.harness import CoreHarness
from tests.support.timeline import Timeline


def test_decodes_first_then_chunks_then_admissions() -> None:
    """Sarathi-Serve, Algorithm 3: of a step's tokens (10) each decode gets one, then prompts that
    are partly computed get a chunk (at most 4), then new ones, while places (5) last and fewer than
    2 prompts are left partly computed.

    | request | prompt     | outputs | arrives      |
    | a b c d | 3 11 9 2   | 6 3 2 4 | before step 1 |
    | e f     | 9 1        | 2 2     | before step 4 |
    | g h i   | 14 14 1    | 2 1 1   | before step 8 |

    1: 3 of a, which is all, 4 of b, and the 3 left of c: b and c are partly computed, so d waits.
    2: a; 4 of b, 4 of c: 8 of 11 and 7 of 9 are computed. d waits, though a token is left.
    3: a; 3 of b, 2 of c, which is all; 4 are left, and d's 2 fit.
    4: a, b, c, d; 4 of e. f has no place. c has 2 outputs and ends.
    5: a, b, d; 4 of e: 8 of 9; f in c's place. b has 3 and ends.
    6: a, d, f; 1 of e. a has 6, d has 4, f has 2: they end. 7: e, which ends.
    Then at most 1 partly computed, and no cap on a chunk.
    8: 10 of g. 9: 4 of g and 6 of h; i waits for h. 10: g, 8 of h, 1 of i; all end.
    """
    line = Timeline(
        max_num_seqs=5, max_num_batched_tokens=10, prefill_chunk=4, max_partial_prefills=2
    )
    line.arrive((3, 6), (11, 3), (9, 2), (2, 4))
    assert line.steps(2) == ["A3 B4 C3", "a B4 C4"]
    assert line.why == "2 of at most 2 prompts are partly computed"
    assert line.step() == "a B3 C2 D2"
    line.arrive((9, 2), (1, 2))
    assert line.step() == "a b c d E4"
    assert line.why == "no slot: 5 of 5 are taken"
    assert line.ended == "c"
    assert line.step() == "a b d E4 F1"
    assert line.ended == "bc"
    assert line.step() == "a d f E1"
    assert line.ended == "abcdf"
    assert line.step() == "e"
    line.turn(prefill_chunk=0, max_partial_prefills=1)
    line.arrive((14, 2), (14, 1), (1, 1))
    assert line.steps(2) == ["G10", "G4 H6"]
    assert line.why == "1 of at most 1 prompts are partly computed"
    assert line.step() == "g H8 I1"
    assert line.ended == "abcdefghi"
    line.engine.finish()


@given(
    prompts=st.lists(st.integers(1, 40), min_size=2, max_size=12),
    limit=st.integers(1, 3),
    chunk=st.sampled_from((0, 3, 9)),
    depth=st.sampled_from((1, 2)),
)
@settings(max_examples=40)
def test_the_limit_on_partial_prefills_really_limits(
    prompts: list[int], limit: int, chunk: int, depth: int
) -> None:
    line = Timeline(
        max_num_batched_tokens=24,
        prefill_chunk=chunk,
        max_partial_prefills=limit,
        depth=depth,
        num_blocks=128,
    )
    line.arrive(*[(prompt, 2) for prompt in prompts])
    line.engine.finish()
    partial: set[int] = set()
    for plan in line.engine.runner.plans:
        for row in plan.rows:
            if row.prefill:
                (partial.discard if row.samples else partial.add)(row.seq)
        assert len(partial) <= limit


def shapes(engine: CoreHarness) -> list[list[tuple[int, int, bool]]]:
    """(sequence, tokens, prefill) of each row of each step."""
    return [
        [(row.seq, row.count, row.prefill) for row in plan.rows] for plan in engine.runner.plans
    ]


def test_knobs_hold_from_the_next_step_on() -> None:
    engine = CoreHarness(max_num_batched_tokens=32, max_num_seqs=4)
    engine.submit("a", list(range(40)), 2)
    engine.step()
    engine.core.change_knobs({"max_num_batched_tokens": 5}, "test")
    engine.step()
    assert [plan.num_tokens for plan in engine.runner.plans] == [32, 5]
    assert [record.budget for record in engine.records] == [32, 5]


@pytest.mark.parametrize("depth", [1, 2])
def test_priorities_are_admitted_first(depth: int) -> None:
    engine = CoreHarness(max_num_seqs=1, depth=depth)
    for name, priority in (("low", -1), ("mid", 0), ("mid2", 0), ("high", 5)):
        engine.submit(name, [1, 2, 3], 2, priority=priority)
    engine.finish()
    admitted = [name for record in engine.records for name in record.admitted]
    assert admitted == ["high", "mid", "mid2", "low"]


def test_the_head_of_the_line_is_not_overtaken() -> None:
    """A small request that fits waits behind a big one that does not, or the big one starves."""
    engine = CoreHarness(num_blocks=8, prefix_caching=False)
    engine.submit("running", list(range(14)), 6)
    engine.submit("big", list(range(100, 120)), 2)
    engine.submit("small", [7], 2)
    engine.step()
    assert shapes(engine)[0] == [(1, 14, True)]
    engine.finish()
    admitted = [name for record in engine.records for name in record.admitted]
    assert admitted == ["running", "big", "small"]


def test_fewer_slots_drain_down() -> None:
    engine = CoreHarness(max_num_seqs=4)
    for i in range(6):
        engine.submit(f"r{i}", [i, 1, 2], 4 + i)
    engine.step()
    engine.core.change_knobs({"max_num_seqs": 2}, "test")
    engine.step()
    states = {state.name: state for state in engine.snapshot().knobs}
    assert (states["max_num_seqs"].requested, states["max_num_seqs"].effective) == (2, 4)
    assert states["max_num_seqs"].note == "2 more than requested still run"
    while len(engine.ends) < 2:
        engine.step()
    assert engine.snapshot().num_running == 2
    assert engine.snapshot().totals.preemptions == 0
    state = next(s for s in engine.snapshot().knobs if s.name == "max_num_seqs")
    assert (state.effective, state.note) == (2, "")
    engine.finish()


def test_draining_ends_what_runs_and_admits_nothing() -> None:
    engine = CoreHarness(max_num_seqs=2)
    for i in range(4):
        engine.submit(f"r{i}", [i, 1, 2], 4)
    engine.step()
    engine.core.change_knobs({"draining": True}, "test")
    state = next(s for s in engine.snapshot().knobs if s.name == "draining")
    assert (state.requested, state.effective, state.note) == (True, True, "2 still run")
    engine.run()
    assert set(engine.ends) == {"r0", "r1"}
    assert engine.core.num_unfinished == 2
    engine.core.change_knobs({"draining": False}, "test")
    engine.finish()


def test_draining_ends_what_was_preempted_too() -> None:
    engine = CoreHarness(num_blocks=6, block_size=4, max_num_seqs=2)
    engine.submit("a", [1, 2, 3], 16)
    engine.submit("b", [4, 5, 6], 16)
    engine.submit("c", [7, 8, 9], 4)
    while not engine.snapshot().totals.preemptions:
        engine.step()
    engine.core.change_knobs({"draining": True}, "test")
    engine.run()
    assert set(engine.ends) == {"a", "b"}
    engine.core.change_knobs({"draining": False}, "test")
    engine.finish()


def test_a_budget_below_what_runs_says_so() -> None:
    engine = CoreHarness(max_num_seqs=4)
    for i in range(4):
        engine.submit(f"r{i}", [i, 1, 2], 6)
    engine.step()
    engine.core.change_knobs({"max_num_seqs": 2, "max_num_batched_tokens": 2}, "test")
    state = next(s for s in engine.snapshot().knobs if s.name == "max_num_batched_tokens")
    assert state.note == "4 still run: the last admitted get no token for now"
    engine.finish()


def test_paused_stands_still_and_goes_on() -> None:
    engine = CoreHarness()
    engine.submit("a", [1, 2], 5)
    engine.step()
    engine.core.change_knobs({"paused": True}, "test")
    engine.run()
    assert len(engine.runner.plans) == 1
    assert engine.core.idle
    engine.core.change_knobs({"paused": False}, "test")
    engine.finish()
    assert len(engine.tokens["a"]) == 5


@given(
    prompts=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    budget=st.integers(4, 24),
    chunk=st.integers(0, 16),
    depth=st.sampled_from((1, 2)),
)
@settings(max_examples=60)
def test_no_decode_ever_waits_for_a_prompt(
    prompts: list[int], budget: int, chunk: int, depth: int
) -> None:
    """With blocks enough, a sequence that decodes has a row in every step until it ends."""
    engine = CoreHarness(
        num_blocks=256,
        max_num_seqs=4,
        max_num_batched_tokens=budget,
        prefill_chunk=min(chunk, budget),
        depth=depth,
        prefix_caching=False,
    )
    for i, length in enumerate(prompts):
        engine.submit(f"r{i}", [i, *range(100, 100 + length)], 1 + i % 7)
    engine.finish()
    outputs: dict[int, int] = {}
    for plan in engine.runner.plans:
        decoding = {seq for seq, count in outputs.items() if 0 < count < 1 + (seq - 1) % 7}
        assert decoding == {row.seq for row in plan.rows if not row.prefill}
        assert plan.num_tokens <= budget
        for row in plan.rows:
            assert row.count == 1 or row.prefill
            assert row.count <= (chunk or budget) or not row.prefill
            outputs[row.seq] = outputs.get(row.seq, 0) + row.samples
