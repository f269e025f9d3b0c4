"""The map that is made of the pool's books: a segment for each run, few segments where there are
too many runs."""

from __future__ import annotations

from array import array
from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from engine.api.block_map import BlockMap, BlockSegment, BlockState
from engine.cache.pool import BlockPool
from engine.cache.pool_copy import PoolCopy

BUSIEST_FIRST = "surpcf"
blocks = st.one_of(
    st.tuples(st.sampled_from("pcf"), st.just(())),
    st.tuples(st.sampled_from("ur"), st.tuples(st.integers(1, 3))),
    st.tuples(st.just("s"), st.sampled_from([(1, 2), (2, 3), (1, 2, 3)])),
)
# In runs, as pools have them.
pools = st.lists(st.tuples(blocks, st.integers(1, 6)), min_size=1, max_size=40).map(
    lambda runs: [block for block, count in runs for _ in range(count)]
)


def copy_of(pool: list[tuple[str, tuple[int, ...]]]) -> PoolCopy:
    return PoolCopy(
        BlockMap(len(pool), (), 0, 0, 0, 0),
        "".join(state for state, _ in pool),
        array("q", [who[0] if who else -1 for _, who in pool]),
        {block: who for block, (state, who) in enumerate(pool) if state == "s"},
    )


@given(pools, st.integers(1, 60))
def test_every_block_is_in_one_segment_and_every_run_shows(
    pool: list[tuple[str, tuple[int, ...]]], most: int
) -> None:
    segments = copy_of(pool).map(most).segments
    assert len(segments) <= most
    assert [s.first for s in segments] == [
        sum(s.blocks for s in segments[:place]) for place in range(len(segments))
    ]
    assert sum(s.blocks for s in segments) == len(pool)
    runs = [(kind, len(list(run))) for kind, run in groupby(pool)]
    if len(runs) <= most:
        assert [((s.state, s.holders), s.blocks) for s in segments] == runs
        return
    for segment in segments:
        part = pool[segment.first : segment.first + segment.blocks]
        found = [state for state, _ in part]
        assert segment.counts == tuple(map(found.count, BUSIEST_FIRST))
        assert all(segment.count(BlockState(s)) == found.count(s) for s in BUSIEST_FIRST)
        # One held block among many free ones is seen.
        assert segment.state == next(s for s in BUSIEST_FIRST if s in found)
        assert segment.holders == tuple(sorted({o for _, who in part for o in who}))


def test_a_few_blocks_of_a_large_pool_are_a_segment_of_their_own() -> None:
    pool = BlockPool(200_000, lambda _block: None)
    pool.allocate(3, 7)
    (cached,) = pool.allocate(1, 8)
    pool.retain(cached)
    pool.free([cached], 8)
    assert pool.copy().map(2048).segments == (
        BlockSegment(0, 3, BlockState.USED, (7,)),
        BlockSegment(3, 1, BlockState.CACHED),
        BlockSegment(4, 199_996, BlockState.FREE),
    )


def test_a_run_counts_its_own_state_only() -> None:
    run = BlockSegment(4, 9, BlockState.USED, (1,))
    assert [run.count(state) for state in BlockState] == [0, 9, 0, 0, 0, 0]


def test_one_block_more_than_the_segments_allow() -> None:
    alternating: list[tuple[str, tuple[int, ...]]] = [("u", (n % 2 + 1,)) for n in range(9)]
    assert len(copy_of(alternating).map(9).segments) == 9
    merged = copy_of(alternating).map(8).segments
    assert [s.blocks for s in merged] == [2, 2, 2, 2, 1]
    assert merged[0] == BlockSegment(0, 2, BlockState.USED, (1, 2), (0, 2, 0, 0, 0, 0))
