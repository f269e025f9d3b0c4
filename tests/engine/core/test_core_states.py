"""A model with a state of each sequence: prefixes are taken over where a snapshot of it is kept.

The runner's state is the tokens that went into it, so that a wrong state fails the step.
"""

from __future__ import annotations

import pytest

from tests.support.harness import CoreHarness, make_request, say

PROMPT = list(range(10, 31))  # five blocks and one token


def harness(num_snapshots: int = 8, **options: object) -> CoreHarness:
    return CoreHarness(num_snapshots=num_snapshots, **options)  # type: ignore[arg-type]


def hits(engine: CoreHarness) -> int:
    return engine.snapshot().totals.prefix_hit_tokens


def served(engine: CoreHarness, name: str, prompt: list[int], count: int = 4) -> int:
    """Serve a request alone; returns the tokens of its prefix that were there."""
    before = hits(engine)
    engine.submit(name, prompt, count)
    engine.finish()
    return hits(engine) - before


def test_a_prompt_is_cut_at_its_last_full_block_where_a_snapshot_is_taken() -> None:
    engine = harness()
    served(engine, "a", PROMPT)
    first, second = engine.runner.plans[:2]
    assert [(row.start, row.count) for row in first.rows + second.rows] == [(0, 20), (20, 1)]
    assert len(first.saves) == 1
    assert second.saves == ()


def test_an_equal_prompt_goes_on_from_the_snapshot() -> None:
    engine = harness()
    assert served(engine, "a", PROMPT) == 0
    assert served(engine, "b", PROMPT) == 20
    assert engine.runner.plans[-4].restores


def test_chunks_of_a_long_prompt_leave_snapshots_too() -> None:
    engine = harness(max_num_batched_tokens=10)
    served(engine, "a", PROMPT)
    # Chunks end with a block: 8, 16 and 20 tokens.
    assert served(engine, "b", [*PROMPT[:17], 5, 6, 7, 8]) == 16


def test_another_turn_goes_on_after_the_reply() -> None:
    engine = harness()
    served(engine, "a", PROMPT, 12)
    reply = engine.tokens["a"]
    # The state after 32 tokens was saved while the reply was decoded; that after 24 and 28 before
    # it gave way.
    assert served(engine, "b", PROMPT + reply + [1, 2]) == 32
    assert engine.snapshot().blocks.snapshots_kept <= 4


def test_without_a_snapshot_blocks_alone_are_no_hit() -> None:
    engine = harness(num_snapshots=0)
    served(engine, "a", PROMPT)
    assert served(engine, "b", PROMPT) == 0
    state = engine.core.ledger.states(engine.core._scheduler.effective(engine.core.ledger.knobs))
    notes = {knob.name: knob.note for knob in state}
    assert "snapshot_memory" in notes["prefix_caching"]


def test_a_prefix_whose_snapshot_was_given_up_is_computed_again() -> None:
    engine = harness(num_snapshots=1)
    served(engine, "a", PROMPT, 1)
    assert served(engine, "b", [7] * 21, 1) == 0
    assert served(engine, "c", PROMPT, 1) == 0
    assert served(engine, "d", PROMPT, 1) == 20


def test_prefix_caching_off_takes_none() -> None:
    engine = harness(prefix_caching=False)
    served(engine, "a", PROMPT)
    assert all(plan.saves == () for plan in engine.runner.plans)
    assert engine.snapshot().blocks.snapshots_kept == 0


def test_a_victim_goes_on_from_its_last_snapshot() -> None:
    engine = harness(num_blocks=12, max_num_seqs=2)
    for name, first in (("a", 100), ("b", 200)):
        engine.submit(name, [*range(first, first + 17)], 16)
    engine.finish()
    totals = engine.snapshot().totals
    assert totals.preemptions > 0
    again = [plan for plan in engine.runner.plans if plan.restores]
    assert again, "what was computed is not computed from the start again"


def test_what_is_computed_again_leaves_its_snapshot_where_it_was() -> None:
    """A victim may come to the end of the block where its last snapshot was taken once more."""
    cache = harness().core._scheduler.cache
    assert cache.snapshots is not None
    request = make_request(0, PROMPT)
    say(request, range(40, 50))
    for _ in range(2):
        snapshot = cache.snapshots.take()
        assert snapshot is not None
        cache.keep_state(request, 28, snapshot)
        assert cache.snapshots.has(request.block_hashes[6])


def test_a_fork_goes_on_from_a_snapshot_of_its_source() -> None:
    engine = harness()
    engine.submit("a", PROMPT, 12)
    for _ in range(4):
        engine.step()
    engine.submit("b", [*PROMPT, 3], 4, fork_of="a")
    engine.finish()
    assert hits(engine) == 20
    assert all(plan.copies == () for plan in engine.runner.plans)


def test_pins_are_refused_with_the_reason() -> None:
    engine = harness()
    engine.core.pins.pin("system", PROMPT)
    (view,) = engine.core.draft().snapshot().pins
    assert view.error == "the model keeps states beside its cache, which are not pinned"


def test_a_request_that_ends_before_its_first_row_lets_its_snapshot_go() -> None:
    engine = harness(num_snapshots=1, max_num_batched_tokens=8, max_num_seqs=8)
    served(engine, "a", PROMPT, 1)
    engine.submit("b", PROMPT, 4)
    engine.core.abort("b")
    engine.finish()
    assert served(engine, "c", [9] * 21, 1) == 0, "its snapshot may be given up"


@pytest.mark.parametrize("policy", ["static", "dynamic", "orca", "prefill_first", "stall_free"])
@pytest.mark.parametrize("depth", [1, 2])
def test_every_policy_keeps_states_right(policy: str, depth: int) -> None:
    engine = harness(
        policy=policy,
        depth=depth,
        num_blocks=20,
        max_num_batched_tokens=24,
        static_fill="idle",
        batch_window_ms=0.0,
    )
    for i in range(8):
        engine.submit(f"r{i}", [*PROMPT[: 5 + 2 * i], i], 6)
        engine.step()
    engine.finish()
    assert engine.runner.violations == []
