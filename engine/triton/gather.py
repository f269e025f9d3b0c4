"""The rows that sample."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.triton.overlap import launch_options, let_next_start, wait_for_previous
from engine.triton.tile import part_of_row


@triton.jit
def _gather(
    out,
    x,
    indices,
    out_stride,
    x_stride,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Copy a part of a row; the grid is [S, parts of a row]."""
    let_next_start(OVERLAP)
    sample = tl.program_id(0).to(tl.int64)
    wait_for_previous(OVERLAP)
    index = tl.load(indices + sample).to(tl.int64)
    at = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (index >= 0) & (at < WIDTH)
    numbers = tl.load(x + index * x_stride + at, mask=inside, other=0.0)
    tl.store(out + sample * out_stride + at, numbers, mask=inside)


def gather(out: Tensor, x: Tensor, indices: Tensor) -> None:
    """Take rows of a matrix: out[s] = x[indices[s]].

    Args:
        out: [S, width].
        x: [T, width].
        indices: [S] int32; -1 is padding, whose row is not written.
    """
    samples, width = out.shape
    tile = part_of_row(width)
    _gather[samples, triton.cdiv(width, tile.columns)](
        out,
        x,
        indices,
        out.stride(0),
        x.stride(0),
        WIDTH=width,
        COLUMNS=tile.columns,
        num_warps=tile.warps,
        **launch_options(),
    )
