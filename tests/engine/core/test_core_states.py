"""A model with a state of each sequence: prefixes are taken over where a snapshot of it is kept.

The runner's state is the tokens that went into it, so that a wrong state fails the step.
"""

from __future__ import annotations

import pytest

from engine.api.config import EngineConfig
from engine.api.lifecycle import RequestState
from engine.cache.manager import KVCache
from engine.scheduling.states import States
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
    notes = {knob.name: knob.note for knob in engine.snapshot().knobs}
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
    config = EngineConfig(num_blocks=16, block_size=4, num_snapshots=4, max_model_len=64)
    cache = KVCache(config, "key", keeps_states=True)
    assert cache.snapshots is not None
    states = States(cache)
    request = make_request(0, PROMPT)
    say(request, range(40, 50))
    request.state = RequestState.RUNNING
    for _ in range(2):
        states.save(request, 28)
        _restores, saves = states.drain([request])
        assert len(saves) == 1
        states.step_ended(saves, publish=True)
        assert cache.snapshots.has(request.block_hashes[6])


def test_a_snapshot_is_found_by_requests_of_its_salt() -> None:
    engine = harness()
    cached = {}
    for number, salt in enumerate(("a", "", "b", "a")):
        engine.submit(f"{number}", PROMPT, 2, cache_salt=salt)
        engine.finish()
        cached[number] = engine.ends[f"{number}"].usage.cached_tokens
    assert cached.pop(3) > 0
    assert cached == {0: 0, 1: 0, 2: 0}


def test_a_fork_goes_on_from_a_snapshot_of_its_source() -> None:
    engine = harness()
    engine.submit("a", PROMPT, 12)
    for _ in range(4):
        engine.step()
    engine.submit("b", [*PROMPT, 3], 4, fork_of="a")
    engine.finish()
    assert hits(engine) == 20
    assert all(plan.copies == () for plan in engine.runner.plans)


def crowd(engine: CoreHarness) -> None:
    """Others whose prompts and replies take every snapshot that may be taken."""
    for _ in range(6):
        first = len(engine.ends) + 40
        served(engine, f"other{first}", [*range(first, first + 21)], 6)


def pin_view(engine: CoreHarness) -> tuple[int, int, str]:
    (view,) = engine.snapshot().pins
    return view.blocks, view.computed, view.error


def test_a_prompt_is_cut_where_a_pinned_prefix_ends() -> None:
    engine = harness()
    engine.core.pins.pin("system", PROMPT[:10])
    served(engine, "a", PROMPT)
    rows = [(row.start, row.count) for plan in engine.runner.plans[:3] for row in plan.rows]
    assert rows == [(0, 8), (8, 12), (20, 1)]
    before = len(engine.runner.plans)
    served(engine, "b", [*PROMPT[:8], *range(50, 60)])
    (row,) = engine.runner.plans[before].rows
    assert (row.start, row.count) == (8, 8), "its snapshot is there, so nothing is cut for it"


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_snapshot_of_a_pinned_prefix_stays(when: str) -> None:
    engine = harness(num_snapshots=2)
    if when == "before":
        engine.core.pins.pin("system", PROMPT[:8])
        assert pin_view(engine) == (2, 0, "")
    served(engine, "a", PROMPT[:9], 1)
    if when == "after":
        engine.core.pins.pin("system", PROMPT[:8])
    assert pin_view(engine) == (2, 2, "")
    crowd(engine)
    assert pin_view(engine) == (2, 2, "")
    assert served(engine, "b", [*PROMPT[:8], *range(50, 60)]) == 8


def test_without_its_pin_it_goes() -> None:
    engine = harness(num_snapshots=2)
    engine.core.pins.pin("system", PROMPT[:8])
    engine.core.pins.pin("the same", PROMPT[:8])
    served(engine, "a", PROMPT[:9], 1)
    engine.core.pins.unpin("system")
    crowd(engine)
    assert served(engine, "b", [*PROMPT[:8], 7]) == 8, "another pin is of it"
    engine.core.pins.unpin("the same")
    crowd(engine)
    assert served(engine, "c", [*PROMPT[:8], 5]) == 0


def test_pins_leave_a_snapshot_to_others() -> None:
    engine = harness(num_snapshots=2)
    engine.core.pins.pin("one", PROMPT[:8])
    engine.core.pins.pin("two", PROMPT[:12])
    views = {view.name: view.error for view in engine.snapshot().pins}
    assert views == {
        "one": "",
        "two": "pinned prefixes would take 2 snapshots of states; snapshot_memory has room for "
        "1 beyond one",
    }


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
