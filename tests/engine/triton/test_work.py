"""A work list has each key that a query sees once, in pieces that have places of their own."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.triton.work import KEYS_AT_ONCE, LEAST_KEYS, WorkList, cut, most_slots

ROWS = st.lists(
    st.tuples(st.integers(0, 4000), st.one_of(st.just(1), st.integers(1, 300))),
    min_size=1,
    max_size=12,
)


@given(
    rows=ROWS,
    tile=st.sampled_from([1, 5, 16, 64]),
    window=st.one_of(st.none(), st.integers(1, 2000)),
    programs=st.integers(1, 600),
    data=st.data(),
)
def test_every_query_has_its_keys_once(
    rows: list[tuple[int, int]],
    tile: int,
    window: int | None,
    programs: int,
    data: st.DataObject,
) -> None:
    starts, counts = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    chosen = np.array(
        sorted(data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1))), dtype=np.int64
    )
    work = cut(starts, counts, rows=chosen, tile=tile, window=window, programs=programs)
    offsets = np.cumsum(counts) - counts
    seen: dict[int, list[tuple[int, int]]] = {}
    for row, first, count, position, begin, end, _ in work.items.tolist():
        assert row in chosen
        assert 1 <= count <= tile
        assert offsets[row] <= first
        assert first + count <= offsets[row] + counts[row]
        assert position - first == starts[row] - offsets[row]
        assert 0 <= begin < end
        seen.setdefault(first, []).append((begin, end))
        for query in range(first + 1, first + count):
            assert seen.setdefault(query, seen[first]) is seen[first], "in two tiles"
    wanted = {int(offsets[row] + i) for row in chosen for i in range(counts[row])}
    assert set(seen) == wanted
    for row in chosen:
        for i in range(counts[row]):
            position = int(starts[row]) + i
            pieces = sorted(seen[int(offsets[row]) + i])
            least = 0 if window is None else max(0, position - window + 1)
            assert pieces[0][0] <= least
            assert pieces[-1][1] > position
            assert all(a[1] == b[0] for a, b in itertools.pairwise(pieces))
    check_slots(work, programs)


def check_slots(work: WorkList, programs: int) -> None:
    """Each part has its own slot, and those of a tile are merged in the order of their keys."""
    parts = {item[6]: item for item in work.items.tolist() if item[6] >= 0}
    assert sorted(parts) == list(range(work.num_slots))
    assert work.num_slots <= most_slots(programs)
    merged = []
    for slot, count, first, queries in work.merges.tolist():
        assert count > 1
        tile = [parts[slot + part] for part in range(count)]
        assert {(item[1], item[2]) for item in tile} == {(first, queries)}
        assert [item[4] for item in tile[1:]] == [item[5] for item in tile[:-1]]
        merged += range(slot, slot + count)
    assert sorted(merged) == list(range(work.num_slots))


def test_one_long_context_is_shared_out_and_many_short_ones_are_not_cut() -> None:
    one = np.ones(1, dtype=np.int64)
    work = cut(one * 32_000, one, rows=one - 1, tile=1, window=None, programs=64)
    assert 60 <= len(work.items) <= 64
    assert len(work.merges) == 1
    lengths = work.items[:, 5] - work.items[:, 4]
    assert (lengths[:-1] % KEYS_AT_ONCE == 0).all()
    many = np.ones(64, dtype=np.int64)
    work = cut(many * 500, many, rows=np.arange(64), tile=1, window=None, programs=64)
    assert len(work.items) == 64
    assert work.num_slots == 0
    short = cut(one * (LEAST_KEYS - 1), one, rows=one - 1, tile=1, window=None, programs=64)
    assert len(short.items) == 1
