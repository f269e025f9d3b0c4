"""Every run of blocks that somebody uses has a cell, however large the pool is."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from engine.api.block_map import BlockSegment, BlockState
from tests.widgets.pools import pool_of
from widgets.panels.kv_cells import ROWS, SMALL_ROWS, KvCells, rows_wanted

kinds = st.one_of(
    st.tuples(st.sampled_from("pcf"), st.just(())),
    st.tuples(st.sampled_from(["u", "r", "s", "uf", "srpc"]), st.tuples(st.integers(1, 5))),
)
runs = st.lists(
    st.tuples(kinds, st.one_of(st.integers(1, 9), st.integers(1, 50_000))), min_size=1, max_size=60
)


@given(runs, st.integers(1, 90), st.integers(1, 12))
@example([(("u", (n,)), 1) for n in range(19)] + [(("f", ()), 50_000)], 10, 1)
@example([(("u", (n,)), blocks) for n, blocks in enumerate((1, 1, 18))], 3, 1)
@example([(("uf", (n,)), 900) for n in range(5)], 10, 1)
@example([(("uf", (n,)), 900) for n in range(9)] + [(("f", ()), 50_000)], 5, 1)
def test_every_block_is_in_one_cell_and_every_run_has_one(
    pool: list[tuple[tuple[str, tuple[int, ...]], int]], width: int, height: int
) -> None:
    blocks = pool_of(*((*kind, count) for kind, count in pool))
    fit = KvCells.fit(blocks, width, height)
    assert fit.span * fit.columns <= width
    assert len(fit.cells) <= fit.columns * height
    assert fit.largest == max(cell.blocks for cell in fit.cells)
    place = 0
    for number, cell in enumerate(fit.cells):
        assert cell.first == place
        assert fit.at(place) == fit.at(place + cell.blocks - 1) == number
        place += cell.blocks
    assert place == blocks.num_blocks
    # A run is either seen by itself, or in a cell that counts its blocks and names its holders.
    for run in blocks.segments:
        cell = fit.cells[fit.at(run.first)]
        assert set(run.holders) <= set(cell.holders)
        assert cell.count(run.state) > 0
        if len(blocks.segments) <= fit.columns * height:
            assert (cell.first, *cell[2:]) == (run.first, *run[2:])
    for state in BlockState:
        assert sum(c.count(state) for c in fit.cells) == sum(
            run.count(state) for run in blocks.segments
        )


def test_a_cell_of_several_states_has_the_share_of_each() -> None:
    blocks = pool_of(("u", (1,), 1), ("c", (), 2), ("s", (2, 3), 3), ("f", (), 4))
    (cell,) = KvCells.fit(blocks, 1, 1).cells
    assert cell == BlockSegment(0, 10, BlockState.SHARED, (1, 2, 3), (3, 1, 0, 0, 2, 4))


def test_a_segment_of_several_states_takes_one_cell_however_long_it_is() -> None:
    ends = ("uf", (1,), 1000), ("f", (), 1800)
    assert [c.blocks for c in KvCells.fit(pool_of(*ends), 10, 1).cells] == [1000, *[280] * 6, 120]
    crowd = [("u", (n,), 1) for n in range(20)]
    cells = KvCells.fit(pool_of(*crowd, *ends), 10, 1).cells
    assert [c.blocks for c in cells] == [20, 1000, *[282] * 6, 108]


def test_a_small_pool_is_drawn_large() -> None:
    small = KvCells.fit(pool_of(("f", (), 64)), 80, 8)
    assert (small.span, small.columns, small.largest) == (8, 10, 1)
    assert KvCells.fit(pool_of(("f", (), 400)), 80, 6).span == 1
    assert KvCells.fit(pool_of(("f", (), 3)), 6, 1).span == 2


def test_the_height_follows_the_pool_and_its_use() -> None:
    assert rows_wanted(pool_of(("f", (), 64)), 80) == SMALL_ROWS
    assert rows_wanted(pool_of(("f", (), 4)), 80) == 1
    idle = pool_of(("u", (1,), 9), ("f", (), 199_991))
    assert rows_wanted(idle, 80) == ROWS[0]
    assert rows_wanted(pool_of(("u", (1,), 300), ("f", (), 199_700)), 80) == 6
    assert rows_wanted(pool_of(("u", (1,), 150_000), ("f", (), 50_000)), 80) == ROWS[-1]
    assert rows_wanted(pool_of(("u", (1,), 300)), 80) == 4  # all of it in less
