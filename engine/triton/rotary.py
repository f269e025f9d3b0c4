"""Rotary embeddings (RoFormer, arXiv 2104.09864), and keys and values put into the paged cache."""

from __future__ import annotations

from typing import Any, Protocol

import triton
import triton.language as tl
from torch import Tensor

from engine.triton.overlap import launch_options, let_next_start, wait_for_previous
from engine.triton.tile import NUMBERS, padded

# A program has 8 heads of 128 numbers: each thread has 8 of the first halves and 8 of the second.
# So one token of 32 heads over 8 has 5 programs, and a multiprocessor holds 32.
WARPS = 2
LINE_NUMBERS = WARPS * 32 * NUMBERS * 2


class Rotation(Protocol):
    """Tables of RoPE, as `engine.model.program.graph.Rotation`.

    Attributes:
        cos, sin: [positions, half] float32 in one piece.
        interleaved: whether columns (2 i, 2 i + 1) make a pair, and not (i, i + half).
    """

    @property
    def cos(self) -> Tensor: ...

    @property
    def sin(self) -> Tensor: ...

    @property
    def interleaved(self) -> bool: ...


@triton.jit
def _rotate(
    heads,
    slots,
    is_head,
    cos,
    sin,
    LINES: tl.constexpr,
    HALF: tl.constexpr,
    PADDED_HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    STORES: tl.constexpr,
):
    """Rotate some heads in place, and with STORES store them in the cache.

    Args:
        heads, slots: [LINES] pointers to the first number of a head, and to its place in the cache.
        cos, sin: pointers to the first number for the position.
    """
    # A matrix of one row, because a vector would be loaded by other threads than those that need
    # it.
    pair = tl.arange(0, PADDED_HALF)[None, :]
    is_pair = pair < HALF
    c = tl.load(cos + pair, mask=is_pair, other=0.0)
    s = tl.load(sin + pair, mask=is_pair, other=0.0)
    if INTERLEAVED:
        at = tl.arange(0, 2 * PADDED_HALF)[None, :]
        inside = is_head[:, None] & (at < 2 * HALF)
        x = tl.load(heads[:, None] + at, mask=inside, other=0.0).to(tl.float32)
        a, b = tl.split(tl.reshape(x, [LINES, PADDED_HALF, 2]))
        x = tl.reshape(tl.join(a * c - b * s, b * c + a * s), [LINES, 2 * PADDED_HALF])
        tl.store(heads[:, None] + at, x, mask=inside)
        if STORES:
            tl.store(slots[:, None] + at, x, mask=inside)
    else:
        inside = is_head[:, None] & is_pair
        at = heads[:, None] + pair
        first = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(at + HALF, mask=inside, other=0.0).to(tl.float32)
        a = first * c - second * s
        b = second * c + first * s
        tl.store(at, a, mask=inside)
        tl.store(at + HALF, b, mask=inside)
        if STORES:
            at = slots[:, None] + pair
            tl.store(at, a, mask=inside)
            tl.store(at + HALF, b, mask=inside)


@triton.jit
def _copy(slots, heads, is_head, FIRST: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """Copy the numbers [FIRST, SIZE) of some heads to their places."""
    at = FIRST + tl.arange(0, PADDED)[None, :]
    inside = is_head[:, None] & (at < SIZE)
    numbers = tl.load(heads[:, None] + at, mask=inside, other=0.0)
    tl.store(slots[:, None] + at, numbers, mask=inside)


# The stride of the tables changes from step to step. Specialized, it would be compiled each time.
@triton.jit(do_not_specialize=["table_stride"])
def _rotate_and_store(
    query,
    key,
    value,
    query_cos,
    query_sin,
    key_cos,
    key_sin,
    keys,
    values,
    rows,
    positions,
    block_tables,
    query_stride,
    key_stride,
    value_stride,
    table_stride,
    QUERY_PARTS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    LINES: tl.constexpr,
    QUERY_HALF: tl.constexpr,
    PADDED_QUERY_HALF: tl.constexpr,
    QUERY_INTERLEAVED: tl.constexpr,
    KEY_HALF: tl.constexpr,
    PADDED_KEY_HALF: tl.constexpr,
    KEY_INTERLEAVED: tl.constexpr,
    PADDED_REST: tl.constexpr,
    PADDED_VALUE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Rotate or store LINES heads of a token; the grid is [T, QUERY_PARTS + parts of the keys]."""
    let_next_start(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    wait_for_previous(OVERLAP)
    row = tl.load(rows + token).to(tl.int64)
    position = tl.load(positions + token).to(tl.int64)
    # Padding is masked. If it returned here, a position would be read after a row, not beside it.
    is_token = row >= 0
    row = tl.maximum(row, 0)
    position = tl.where(is_token, position, 0)
    if part < QUERY_PARTS:
        head = part * LINES + tl.arange(0, LINES)
        _rotate(
            query + token * query_stride + head * HEAD_DIM,
            query + token * query_stride + head * HEAD_DIM,
            is_token & (head < HEADS),
            query_cos + position * QUERY_HALF,
            query_sin + position * QUERY_HALF,
            LINES,
            QUERY_HALF,
            PADDED_QUERY_HALF,
            QUERY_INTERLEAVED,
            False,
        )
    else:
        head = (part - QUERY_PARTS) * LINES + tl.arange(0, LINES)
        is_head = is_token & (head < KV_HEADS)
        block = tl.load(block_tables + row * table_stride + position // BLOCK_SIZE).to(tl.int64)
        slot = (block * KV_HEADS + head) * BLOCK_SIZE + position % BLOCK_SIZE
        key_heads = key + token * key_stride + head * HEAD_DIM
        key_slots = keys + slot * HEAD_DIM
        if KEY_HALF > 0:
            _rotate(
                key_heads,
                key_slots,
                is_head,
                key_cos + position * KEY_HALF,
                key_sin + position * KEY_HALF,
                LINES,
                KEY_HALF,
                PADDED_KEY_HALF,
                KEY_INTERLEAVED,
                True,
            )
        if 2 * KEY_HALF < HEAD_DIM:
            _copy(key_slots, key_heads, is_head, 2 * KEY_HALF, HEAD_DIM, PADDED_REST)
        value_heads = value + token * value_stride + head * VALUE_DIM
        _copy(values + slot * VALUE_DIM, value_heads, is_head, 0, VALUE_DIM, PADDED_VALUE)


def rotate_and_store(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    query_rotation: Rotation | None,
    key_rotation: Rotation | None,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    positions: Tensor,
    block_tables: Tensor,
    *,
    heads: int,
    kv_heads: int,
) -> None:
    """Rotate queries and keys in place, and store keys and values in their blocks.

    Args:
        query: [T, heads * head_dim].
        key, value: [T, kv_heads * head_dim] and [T, kv_heads * value_dim]; None if queries are
            only rotated.
        query_rotation, key_rotation: of the first 2 * half numbers of each head; None is none.
        keys: [blocks, kv_heads, block_size, head_dim] in one piece, as in `HeadStorage`.
        values: [blocks, kv_heads, block_size, value_dim] in one piece.
        rows: [T] int32, the row of the block tables; -1 is padding, which is neither read nor
            written.
        positions: [T] int32.
        block_tables: [R, B] int32. No two tokens have the same place.
    """
    block_size, head_dim = keys.shape[2:]
    value_dim = values.shape[3]
    lines = max(LINE_NUMBERS // padded(max(head_dim, value_dim)), 1)
    query_parts = 0 if query_rotation is None else triton.cdiv(heads, lines)
    key_parts = 0 if key is None else triton.cdiv(kv_heads, lines)
    if query_parts + key_parts == 0:
        return
    # Pointers that no program reads may be any.
    key, value = query if key is None else key, query if value is None else value
    tables: list[Tensor] = []
    constants: dict[str, Any] = {}
    for name, rotation, x in (("QUERY", query_rotation, query), ("KEY", key_rotation, key)):
        half = 0 if rotation is None else rotation.cos.shape[1]
        tables += (x, x) if rotation is None else (rotation.cos, rotation.sin)
        constants[f"{name}_HALF"] = half
        # Each thread has at least one number, as in `engine.triton.tile.Tile`.
        constants[f"PADDED_{name}_HALF"] = max(padded(half), WARPS * 32 // lines)
        constants[f"{name}_INTERLEAVED"] = rotation is not None and rotation.interleaved
    _rotate_and_store[len(rows), query_parts + key_parts](
        query,
        key,
        value,
        *tables,
        keys,
        values,
        rows,
        positions,
        block_tables,
        query.stride(0),
        key.stride(0),
        value.stride(0),
        block_tables.stride(0),
        QUERY_PARTS=query_parts,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        VALUE_DIM=value_dim,
        BLOCK_SIZE=block_size,
        LINES=lines,
        PADDED_REST=padded(head_dim - 2 * constants["KEY_HALF"]),
        PADDED_VALUE=padded(value_dim),
        num_warps=WARPS,
        **constants,
        **launch_options(),
    )
