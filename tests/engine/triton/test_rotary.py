"""Rotation and the cache's writes against their definition, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton")

from engine.model.program import rotation
from engine.model.program.rotation import Rotation
from engine.triton.rotary import rotate_and_store
from tests.support.framed import DEVICE, DTYPES, Framed, in_any_order, numbers, within

POSITIONS = 40
ABSOLUTE = 1e-6
ROTATIONS = st.one_of(st.none(), st.tuples(st.floats(0, 1), st.booleans()))


def tables(choice: tuple[float, bool] | None, head_dim: int, seed: int) -> Rotation | None:
    """Tables over a share of the head, of which angles are no matter."""
    half = 0 if choice is None else round(choice[0] * (head_dim // 2))
    if choice is None or half == 0:
        return None
    angles = 9 * numbers(POSITIONS, half, seed=seed)
    return Rotation(angles.cos(), angles.sin(), choice[1])


def rotated(x: Tensor, heads: int, tables: Rotation | None, positions: Tensor) -> Tensor:
    if tables is None:
        return x
    cos, sin = (table.double()[positions.long()] for table in (tables.cos, tables.sin))
    lines = x.reshape(len(x), heads, -1)
    return rotation.rotate(lines, cos, sin, tables.interleaved).flatten(1)


class Step:
    """Queries, keys and values beside each other, as one product leaves them, for tokens at places
    of their own.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        tokens: list[tuple[int, int]],
        heads: int,
        kv_heads: int,
        head_dim: int,
        value_dim: int,
        gap: int,
    ) -> None:
        self.heads, self.kv_heads, self.block_size = heads, kv_heads, 8
        sizes = (heads * head_dim, kv_heads * head_dim, kv_heads * value_dim)
        self.all = Framed(len(tokens), sum(sizes), dtype, gap=gap, seed=1)
        self.query, self.key, self.value = self.all.data.split(sizes, dim=1)
        self.exact = self.all.exact.split(sizes, dim=1)
        self.rows = torch.tensor([row for row, _ in tokens], dtype=torch.int32, device=DEVICE)
        self.positions = torch.tensor([at for _, at in tokens], dtype=torch.int32, device=DEVICE)
        blocks = -(-POSITIONS // self.block_size)
        order = torch.randperm(4 * blocks, generator=torch.Generator().manual_seed(1))
        self.block_tables = order.reshape(4, blocks).int().to(DEVICE)
        empty = torch.full((4 * blocks, kv_heads, self.block_size, 1), torch.nan, device=DEVICE)
        self.keys, self.values = (
            empty.to(dtype).repeat(1, 1, 1, dim) for dim in (head_dim, value_dim)
        )

    def check(
        self,
        query_rotation: Rotation | None,
        key_rotation: Rotation | None,
        stores: bool = True,
    ) -> None:
        with in_any_order(len(self.rows)):
            rotate_and_store(
                self.query,
                self.key if stores else None,
                self.value if stores else None,
                query_rotation,
                key_rotation,
                self.keys,
                self.values,
                self.rows,
                self.positions,
                self.block_tables,
                heads=self.heads,
                kv_heads=self.kv_heads,
            )
        query, key, value = self.exact
        real = (self.rows >= 0)[:, None]
        at = self.positions.clamp(0, POSITIONS - 1)
        query = torch.where(real, rotated(query, self.heads, query_rotation, at), query)
        if stores:
            key = torch.where(real, rotated(key, self.kv_heads, key_rotation, at), key)
        within(self.query, query, ABSOLUTE)
        within(self.key, key, ABSOLUTE)
        assert torch.equal(self.value, value.to(self.value.dtype))
        assert self.all.keeps_frame()
        for cache, stored in ((self.keys, self.key), (self.values, self.value)):
            left = cache.clone()
            for token, (row, place) in enumerate(
                zip(self.rows.tolist(), self.positions.tolist(), strict=True)
            ):
                if row >= 0 and stores:
                    block = self.block_tables[row, place // self.block_size]
                    slot = left[block, :, place % self.block_size]
                    assert torch.equal(slot.flatten(), stored[token])
                    slot.fill_(torch.nan)
            assert left.isnan().all(), "a place that is no token's was written"


@settings(max_examples=60)
@given(
    dtype=st.sampled_from(DTYPES),
    tokens=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, POSITIONS - 1)),
        unique=True,
        min_size=1,
        max_size=6,
    ),
    groups=st.integers(1, 5),
    kv_heads=st.sampled_from((1, 2, 3, 9)),
    dims=st.sampled_from(((16, 16), (80, 80), (96, 64), (24, 40), (192, 128), (6, 5))),
    gap=st.integers(0, 3),
    query=ROTATIONS,
    key=ROTATIONS,
)
def test_is_its_definition(
    dtype: torch.dtype,
    tokens: list[tuple[int, int]],
    groups: int,
    kv_heads: int,
    dims: tuple[int, int],
    gap: int,
    query: tuple[float, bool] | None,
    key: tuple[float, bool] | None,
) -> None:
    step = Step(dtype, tokens, groups * kv_heads, kv_heads, *dims, gap)
    step.check(tables(query, dims[0], 2), tables(key, dims[0], 3))


def test_padding_is_left_alone() -> None:
    outside = 2**31 - 1
    step = Step(torch.float32, [(-1, outside), (2, 17), (-1, -1)], 4, 2, 32, 32, 1)
    both = tables((1.0, False), 32, 2)
    step.check(both, both)


@pytest.mark.parametrize("query", [(1.0, False), None])
def test_queries_alone_leave_the_cache_as_it_is(query: tuple[float, bool] | None) -> None:
    step = Step(torch.float32, [(0, 3), (2, 17)], 4, 2, 32, 16, 1)
    step.check(tables(query, 32, 2), None, stores=False)
