"""One block of the pool in full, while it is held and when it is cached."""

from __future__ import annotations

from engine.api.block_map import BlockState
from tests.support.harness import CoreHarness

PROMPT = list(range(100, 110))


def test_a_block_is_told_of_while_it_is_held_and_when_it_is_let_go() -> None:
    engine = CoreHarness(num_blocks=8)
    engine.submit("a", PROMPT, 3)
    engine.step()
    full, half = engine.core.block(1), engine.core.block(2)
    assert full is not None
    assert half is not None
    assert (full.state, full.holders, full.position) == (BlockState.USED, (1,), 4)
    assert full.token_ids == tuple(PROMPT[4:8])
    assert full.hash
    # This one is not full, and cannot be found by a hash yet.
    assert (half.position, half.token_ids[:2], half.hash) == (8, (108, 109), "")
    assert half.age is not None
    engine.submit("b", [*PROMPT, 1], 3)
    engine.step()
    shared = engine.core.block(1)
    assert shared is not None
    assert (shared.state, shared.holders) == (BlockState.SHARED, (1, 2))
    engine.finish()
    cached = engine.core.block(1)
    assert cached is not None
    assert (cached.state, cached.holders) == (BlockState.CACHED, ())
    assert (cached.position, cached.token_ids, cached.hash) == (4, full.token_ids, full.hash)


def test_a_free_block_has_no_content_and_one_that_is_not_there_no_view() -> None:
    engine = CoreHarness(num_blocks=8)
    free = engine.core.block(7)
    assert free is not None
    assert (free.state, free.age, free.holders, free.token_ids) == (BlockState.FREE, None, (), ())
    assert engine.core.block(8) is None
    assert engine.core.block(-1) is None
