"""Attention over a paged cache, by pieces of a work list, and the merge of pieces.

One program has a tile of queries of all heads that share a key head, and a range of keys: the
online softmax of FlashAttention-2 (arXiv 2307.08691, algorithm 1) over blocks found by the block
table (PagedAttention, SOSP'23, section 4.3). Sums are in float32. Keys that a tile does not see are
not read, so that the old contents of a block do not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from engine.triton.interpreter import is_interpreted
from engine.triton.overlap import launch_options, let_next_start, wait_for_previous
from engine.triton.ways import Way, padded

LOG2_E = tl.constexpr(1.4426950408889634)
ITEM_FIELDS = tl.constexpr(7)
MERGE_FIELDS = tl.constexpr(4)
# Numbers of a tile that a program merges: 32 of each of its 128 threads. All of 128 rows of 256
# numbers would spill 2,752 bytes a thread.
_MERGED = 4096


@triton.jit
def tanh(x):
    """The hyperbolic tangent to float32's precision. The interpreter has no library functions."""
    # Near 0 the difference below would cancel; there the series is exact to 3e-7 of its value.
    square = x * x
    series = x * (1.0 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315))))
    return tl.where(tl.abs(x) < 0.25, series, 2.0 * tl.sigmoid(2.0 * x) - 1.0)


# The stride of the tables changes from step to step. Specialized, it would be compiled each time.
@triton.jit(do_not_specialize=["table_stride"])
def attend(
    output,
    parts,
    states,
    query,
    keys,
    values,
    sinks,
    items,
    block_tables,
    scaling,
    softcap,
    window,
    output_token_stride,
    query_token_stride,
    query_head_stride,
    table_stride,
    KV_HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PADDED_HEAD: tl.constexpr,
    PADDED_VALUE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    KEYS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    UPCAST: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Attend by one item and one key head; the grid is [items, KV_HEADS].

    Args:
        output: [T, KV_HEADS * GROUPS, VALUE_DIM], adjacent heads, written for items that have all
            keys.
        parts: [slots, KV_HEADS, TILE, VALUE_DIM] float32, not divided by the sum of weights.
        states: [slots, KV_HEADS, TILE, 2] float32, the largest score (base 2) and sum of weights.
        query: [T, KV_HEADS * GROUPS, HEAD_DIM], adjacent numbers in a head.
        keys: [blocks, KV_HEADS, BLOCK_SIZE, HEAD_DIM]; values: with VALUE_DIM.
        sinks: [KV_HEADS * GROUPS], read with HAS_SINKS.
        items: [items, ITEM_FIELDS] int32, see `engine.triton.work`; those of row -1 are padding.
        block_tables: [R, table_stride] int32.
        TILE: rows of a tile, GROUPS for each token; a power of two, at least 16.
        UPCAST: whether to multiply in float32, for the interpreter, which cannot in bfloat16.
    """
    let_next_start(OVERLAP)
    item = items + tl.program_id(0) * ITEM_FIELDS
    head = tl.program_id(1)
    wait_for_previous(OVERLAP)
    row = tl.load(item)
    if row < 0:
        return
    first = tl.load(item + 1)
    count = tl.load(item + 2)
    position = tl.load(item + 3)
    begin = tl.load(item + 4)
    end = tl.load(item + 5)
    slot = tl.load(item + 6)

    line = tl.arange(0, TILE)
    token = line // GROUPS
    query_head = head * GROUPS + line % GROUPS
    is_query = token < count
    at_head = tl.arange(0, PADDED_HEAD)
    at_value = tl.arange(0, PADDED_VALUE)
    index = (first + token).to(tl.int64)
    lines = tl.load(
        query
        + index[:, None] * query_token_stride
        + query_head[:, None] * query_head_stride
        + at_head[None, :],
        mask=is_query[:, None] & (at_head < HEAD_DIM)[None, :],
        other=0.0,
    )
    if UPCAST:
        lines = lines.to(tl.float32)
    # Lines below the last query see the same keys as it does, so that each line has a key.
    own = position + tl.minimum(token, count - 1)

    largest = tl.full([TILE], float("-inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    sums = tl.zeros([TILE, PADDED_VALUE], tl.float32)
    table = block_tables + row.to(tl.int64) * table_stride
    start = begin // BLOCK_SIZE * BLOCK_SIZE
    at = start + tl.arange(0, KEYS)
    block = tl.load(table + at // BLOCK_SIZE, mask=at < end, other=0)
    for near in range(start, end, KEYS):
        at = near + tl.arange(0, KEYS)
        is_key = (at >= begin) & (at < end)
        slots = (block.to(tl.int64) * KV_HEADS + head) * BLOCK_SIZE + at % BLOCK_SIZE
        # The blocks of the next keys are loaded one turn ahead, so that copies of keys wait for no
        # other load, and each stage has a copy in flight.
        block = tl.load(table + (at + KEYS) // BLOCK_SIZE, mask=at + KEYS < end, other=0)
        key = tl.load(
            keys + slots[None, :] * HEAD_DIM + at_head[:, None],
            mask=is_key[None, :] & (at_head < HEAD_DIM)[:, None],
            other=0.0,
        )
        value = tl.load(
            values + slots[:, None] * VALUE_DIM + at_value[None, :],
            mask=is_key[:, None] & (at_value < VALUE_DIM)[None, :],
            other=0.0,
        )
        if UPCAST:
            key = key.to(tl.float32)
            value = value.to(tl.float32)
        scores = tl.dot(lines, key, input_precision="ieee") * scaling
        if HAS_SOFTCAP:
            scores = softcap * tanh(scores / softcap)
        sees = is_key[None, :] & (at[None, :] <= own[:, None])
        if HAS_WINDOW:
            sees = sees & (at[None, :] > own[:, None] - window)
        scores = tl.where(sees, scores * LOG2_E, float("-inf"))
        higher = tl.maximum(largest, tl.max(scores, 1))
        # A line that has seen no key yet has no largest score to subtract.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - base[:, None])
        kept = tl.exp2(largest - base)
        total = total * kept + tl.sum(weights, 1)
        sums = sums * kept[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        largest = higher

    is_value = (at_value < VALUE_DIM)[None, :]
    if slot >= 0:
        place = (slot.to(tl.int64) * KV_HEADS + head) * TILE + line
        tl.store(parts + place[:, None] * VALUE_DIM + at_value[None, :], sums, mask=is_value)
        tl.store(states + place * 2, largest)
        tl.store(states + place * 2 + 1, total)
    else:
        if HAS_SINKS:
            sink = tl.load(sinks + query_head).to(tl.float32) * LOG2_E
            higher = tl.maximum(largest, sink)
            kept = tl.exp2(largest - higher)
            total = total * kept + tl.exp2(sink - higher)
            sums = sums * kept[:, None]
        place = index * output_token_stride + query_head * VALUE_DIM
        tl.store(
            output + place[:, None] + at_value[None, :],
            sums / total[:, None],
            mask=is_query[:, None] & is_value,
        )


@triton.jit
def merge(
    output,
    parts,
    states,
    sinks,
    merges,
    output_token_stride,
    KV_HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Merge some columns of the parts of a tile, in their order; the grid is [merges, KV_HEADS,
    parts of a value].

    Args:
        merges: [merges, MERGE_FIELDS] int32, see `engine.triton.work`; slot -1 is padding.
            The rest is as in `attend`.
    """
    let_next_start(OVERLAP)
    entry = merges + tl.program_id(0) * MERGE_FIELDS
    head = tl.program_id(1)
    wait_for_previous(OVERLAP)
    slot = tl.load(entry)
    if slot < 0:
        return
    num_parts = tl.load(entry + 1)
    first = tl.load(entry + 2)
    count = tl.load(entry + 3)

    line = tl.arange(0, TILE)
    token = line // GROUPS
    query_head = head * GROUPS + line % GROUPS
    at_value = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    is_value = (at_value < VALUE_DIM)[None, :]
    if HAS_SINKS:
        largest = tl.load(sinks + query_head).to(tl.float32) * LOG2_E
        total = tl.full([TILE], 1.0, tl.float32)
    else:
        largest = tl.full([TILE], float("-inf"), tl.float32)
        total = tl.zeros([TILE], tl.float32)
    sums = tl.zeros([TILE, COLUMNS], tl.float32)
    for part in range(0, num_parts):
        place = ((slot + part).to(tl.int64) * KV_HEADS + head) * TILE + line
        part_largest = tl.load(states + place * 2)
        part_total = tl.load(states + place * 2 + 1)
        part_sums = tl.load(
            parts + place[:, None] * VALUE_DIM + at_value[None, :], mask=is_value, other=0.0
        )
        higher = tl.maximum(largest, part_largest)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        kept = tl.exp2(largest - base)
        added = tl.exp2(part_largest - base)
        total = total * kept + part_total * added
        sums = sums * kept[:, None] + part_sums * added[:, None]
        largest = higher
    index = (first + token).to(tl.int64)
    place = index * output_token_stride + query_head * VALUE_DIM
    tl.store(
        output + place[:, None] + at_value[None, :],
        sums / total[:, None],
        mask=(token < count)[:, None] & is_value,
    )


@dataclass(frozen=True, slots=True)
class Pieces:
    """A work list on the device, and buffers for its parts.

    Attributes:
        way: of its tiles.
        items, merges: as in `engine.triton.work.WorkList`, with padding.
        parts: [slots, kv_heads, rows of a tile, value_dim] float32.
        states: [slots, kv_heads, rows of a tile, 2] float32.
    """

    way: Way
    items: Tensor
    merges: Tensor
    parts: Tensor
    states: Tensor


def paged_attention(
    output: Tensor,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    pieces: Pieces,
    block_tables: Tensor,
    *,
    scaling: float,
    softcap: float | None,
    window: int | None,
    sinks: Tensor | None,
) -> None:
    """Attend by one work list, and merge its parts.

    Args:
        output: [T, heads, value_dim], adjacent heads.
        query: [T, heads, head_dim], adjacent numbers in a head.
        keys, values: [blocks, kv_heads, block_size, head_dim or value_dim], dense.
        block_tables: [R, B] int32, by the rows of the items.
        scaling, softcap, window, sinks: as in `engine.model.attention.params.AttentionParams`.
    """
    if not len(pieces.items):
        return
    _, kv_heads, block_size, head_dim = keys.shape
    heads, value_dim = query.shape[1], values.shape[3]
    common: dict[str, Any] = {
        "KV_HEADS": kv_heads,
        "GROUPS": heads // kv_heads,
        "VALUE_DIM": value_dim,
        "TILE": pieces.way.rows,
        "HAS_SINKS": sinks is not None,
        **launch_options(),
    }
    some_sinks = query if sinks is None else sinks
    attend[len(pieces.items), kv_heads](
        output,
        pieces.parts,
        pieces.states,
        query,
        keys,
        values,
        some_sinks,
        pieces.items,
        block_tables,
        scaling,
        softcap or 0.0,
        window or 0,
        output.stride(0),
        query.stride(0),
        query.stride(1),
        block_tables.stride(0),
        HEAD_DIM=head_dim,
        PADDED_HEAD=padded(head_dim),
        PADDED_VALUE=padded(value_dim),
        BLOCK_SIZE=block_size,
        KEYS=pieces.way.keys,
        HAS_SOFTCAP=softcap is not None,
        HAS_WINDOW=window is not None,
        UPCAST=is_interpreted(),
        num_warps=pieces.way.warps,
        num_stages=pieces.way.stages,
        **common,
    )
    if len(pieces.merges):
        columns = min(padded(value_dim), _MERGED // pieces.way.rows)
        merge[len(pieces.merges), kv_heads, triton.cdiv(value_dim, columns)](
            output,
            pieces.parts,
            pieces.states,
            some_sinks,
            pieces.merges,
            output.stride(0),
            COLUMNS=columns,
            **common,
        )
