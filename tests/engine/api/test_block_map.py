from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.api.block_map import BlockMap

cells = st.lists(st.tuples(st.sampled_from("urscpf"), st.integers(-1, 9)), min_size=1, max_size=90)


@given(cells, st.integers(1, 40), st.integers(1, 3))
def test_merging_keeps_the_most_frequent_state(
    pool: list[tuple[str, int]], max_cells: int, per_cell: int
) -> None:
    states = "".join(state for state, _ in pool)
    owners = tuple(owner for _, owner in pool)
    blocks = BlockMap(len(pool) * per_cell, per_cell, states, owners, 0, 0, 0, 0)
    merged = blocks.within(max_cells)
    factor = merged.blocks_per_cell // per_cell
    assert len(merged.states) == len(merged.owners) == -(-len(pool) // factor) <= max_cells
    for place, (state, owner) in enumerate(zip(merged.states, merged.owners, strict=True)):
        part = pool[place * factor : (place + 1) * factor]
        found = [s for s, _ in part]
        most = max(found.count(s) for s in "urscpf")
        # Of ties the busiest.
        assert state == next(s for s in "surpcf" if found.count(s) == most)
        assert owner == next(o for s, o in part if s == state)
