"""Rows that are looked up, rows that sample, and updates of block tables: all are copies."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from engine.triton import tables
from engine.triton.embed import embed
from engine.triton.gather import gather
from tests.support.framed import DEVICE, DTYPES, Framed, in_any_order

WIDTHS = st.one_of(st.integers(1, 80), st.just(1500))


def indices(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=DEVICE)


@settings(max_examples=40)
@given(
    dtype=st.sampled_from(DTYPES),
    ids=st.lists(st.integers(0, 6), max_size=9),
    width=WIDTHS,
    gap=st.integers(0, 9),
)
def test_rows_are_looked_up(dtype: torch.dtype, ids: list[int], width: int, gap: int) -> None:
    table = Framed(7, width, dtype, gap=gap, seed=1)
    out = Framed(len(ids), width, dtype, gap=gap + 1, frame=7)
    with in_any_order(width):
        embed(out.data, table.data, indices(*ids))
    assert torch.equal(out.data, table.data[torch.tensor(ids, dtype=torch.int64, device=DEVICE)])
    assert out.keeps_frame()


def test_a_token_that_stayed_on_the_device_is_looked_up() -> None:
    table = Framed(9, 20, torch.float32, seed=1)
    out = Framed(4, 20, torch.float32, frame=7)
    embed(out.data, table.data, indices(3, -1, -3, 8), indices(5, 6, 7))
    assert torch.equal(out.data, table.data[[3, 5, 7, 8]])


def test_nothing_outside_of_the_table_is_read() -> None:
    table = Framed(9, 20, torch.float32, seed=1)
    out = Framed(4, 20, torch.float32, frame=7)
    embed(out.data, table.data, indices(9, -1, 2**31 - 1, -(2**31)))
    assert torch.equal(out.data, table.data[[8, 0, 8, 0]])
    # What the step before left for padding is no token.
    embed(out.data, table.data, indices(-1, -2, -4, -(2**31)), indices(-1, 9, 4))
    assert torch.equal(out.data, table.data[[0, 8, 4, 4]])


@settings(max_examples=40)
@given(
    dtype=st.sampled_from(DTYPES),
    wanted=st.lists(st.integers(-1, 6), max_size=9),
    width=WIDTHS,
    gap=st.integers(0, 9),
)
def test_rows_are_gathered(dtype: torch.dtype, wanted: list[int], width: int, gap: int) -> None:
    x = Framed(7, width, dtype, gap=gap, seed=1)
    out = Framed(len(wanted), width, dtype, gap=gap + 1, seed=2, frame=7)
    expected = out.data.clone()
    for sample, index in enumerate(wanted):
        if index >= 0:
            expected[sample] = x.data[index]
    with in_any_order(width):
        gather(out.data, x.data, indices(*wanted))
    assert torch.equal(out.data, expected)
    assert out.keeps_frame()


@settings(max_examples=30)
@given(
    updates=st.dictionaries(
        st.tuples(st.integers(-1, 4), st.integers(0, 6)), st.integers(0, 99), max_size=40
    ),
)
def test_block_tables_are_updated(updates: dict[tuple[int, int], int]) -> None:
    block_tables = torch.full((7, 9), -7, dtype=torch.int32, device=DEVICE)
    expected = block_tables.clone()
    for (row, place), block in updates.items():
        if row >= 0:
            expected[row + 1, place + 1] = block
    entries = [(row, place, block) for (row, place), block in updates.items()]
    packed = torch.tensor(entries, dtype=torch.int32, device=DEVICE).reshape(-1, 3)
    with in_any_order(len(updates)):
        tables.update(block_tables[1:-1, 1:-1], packed)
    assert torch.equal(block_tables, expected)
