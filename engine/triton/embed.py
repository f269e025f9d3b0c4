"""Rows of a table, by token ids or positions."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.triton.overlap import launch_options, let_next_start, wait_for_previous
from engine.triton.tile import part_of_row


@triton.jit
def _embed(
    out,
    table,
    ids,
    latest,
    table_rows,
    num_latest,
    out_stride,
    table_stride,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    HAS_LATEST: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Copy a part of a row; the grid is [T, parts of a row]."""
    let_next_start(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    wait_for_previous(OVERLAP)
    index = tl.load(ids + token)
    if HAS_LATEST:
        place = tl.minimum(tl.maximum(-1 - index, 0), num_latest - 1)
        index = tl.where(index < 0, tl.load(latest + place), index)
    index = tl.minimum(tl.maximum(index, 0), table_rows - 1).to(tl.int64)
    at = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    numbers = tl.load(table + index * table_stride + at, mask=at < WIDTH, other=0.0)
    tl.store(out + token * out_stride + at, numbers, mask=at < WIDTH)


def embed(out: Tensor, table: Tensor, ids: Tensor, latest: Tensor | None = None) -> None:
    """Look up a row for each token: out[t] = table[ids[t]].

    Ids outside of the table become its first or last row, so that padding may have any ids.

    Args:
        out: [T, width].
        table: [rows, width].
        ids: [T] int32, token ids or positions.
        latest: [batch] int32; the id -1 - i stands for latest[i], because a token sampled by the
            step before stays on the device. Without it, negative ids count as 0.
    """
    rows, width = table.shape
    tile = part_of_row(width)
    # A program has one row, because rows are not adjacent in the table.
    _embed[len(out), triton.cdiv(width, tile.columns)](
        out,
        table,
        ids,
        ids if latest is None else latest,
        rows,
        0 if latest is None else len(latest),
        out.stride(0),
        table.stride(0),
        WIDTH=width,
        COLUMNS=tile.columns,
        HAS_LATEST=latest is not None,
        num_warps=tile.warps,
        **launch_options(),
    )
