"""Gated linear units after their product: GLU, arXiv 2002.05202."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.triton.activation import activate
from engine.triton.overlap import launch_options, let_next_start, wait_for_previous
from engine.triton.tile import part_of_row


# The number of rows changes from step to step. Specialized, it would be compiled each time.
@triton.jit(do_not_specialize=["rows"])
def _gated(
    out,
    both,
    bias,
    rows,
    out_stride,
    both_stride,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Multiply a tile; the grid is [tiles of rows, tiles of columns]."""
    let_next_start(OVERLAP)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    # A matrix of one row, because a vector would be loaded by other threads than those that need
    # it.
    at = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    is_column = at < WIDTH
    inside = (row < rows)[:, None] & is_column
    if HAS_BIAS:
        gate_bias = tl.load(bias + at, mask=is_column, other=0.0)
        up_bias = tl.load(bias + WIDTH + at, mask=is_column, other=0.0)
    wait_for_previous(OVERLAP)
    place = both + row[:, None] * both_stride + at
    gate = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(place + WIDTH, mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        gate = gate + gate_bias
        up = up + up_bias
    product = activate(gate, ACTIVATION) * up
    tl.store(out + row[:, None] * out_stride + at, product, mask=inside)


def gated(out: Tensor, both: Tensor, activation: str, bias: Tensor | None = None) -> None:
    """Multiply the two halves of each row: activation(gate + bias) * (up + bias).

    Args:
        out: [T, columns].
        both: [T, 2 * columns], the gate beside the numbers that it is multiplied with.
        activation: one of `engine.triton.activation.ACTIVATIONS`.
        bias: [2 * columns] float32, or none.
    """
    rows, width = out.shape
    tile = part_of_row(width)
    _gated[triton.cdiv(rows, tile.rows), triton.cdiv(width, tile.columns)](
        out,
        both,
        both if bias is None else bias,
        rows,
        out.stride(0),
        both.stride(0),
        WIDTH=width,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        ACTIVATION=activation,
        HAS_BIAS=bias is not None,
        num_warps=tile.warps,
        **launch_options(),
    )
