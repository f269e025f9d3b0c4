"""RMSNorm (arXiv 1910.07467) and LayerNorm (arXiv 1607.06450)."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.triton.overlap import launch_options, let_next_start, wait_for_previous
from engine.triton.tile import whole_row


# The number of lines changes from step to step. Specialized, it would be compiled each time.
@triton.jit(do_not_specialize=["lines"])
def _norm(
    out,
    x,
    weight,
    bias,
    lines,
    eps,
    out_stride,
    x_stride,
    GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
    LINES: tl.constexpr,
    COLUMNS: tl.constexpr,
    CENTER: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Normalize LINES groups, of one row or of several; the grid is [programs]."""
    let_next_start(OVERLAP)
    line = tl.program_id(0) * LINES + tl.arange(0, LINES)
    # A matrix of one row, because a vector would be loaded by other threads than those that need
    # it.
    at = tl.arange(0, COLUMNS)[None, :]
    is_column = at < WIDTH
    inside = (line < lines)[:, None] & is_column
    # No launch writes the weights, so they can be loaded while the previous kernel still runs.
    if HAS_WEIGHT:
        weights = tl.load(weight + at, mask=is_column, other=0.0)
    if HAS_BIAS:
        biases = tl.load(bias + at, mask=is_column, other=0.0)
    wait_for_previous(OVERLAP)
    row = (line // GROUPS).to(tl.int64)
    column = (line % GROUPS * WIDTH)[:, None] + at
    numbers = tl.load(x + row[:, None] * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    if CENTER:
        # Computed from the differences, because the mean of squares minus the square of the mean
        # would cancel.
        mean = tl.sum(numbers, 1) / WIDTH
        numbers = tl.where(inside, numbers - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(numbers * numbers, 1) / WIDTH + eps)
    numbers = numbers * scale[:, None]
    if HAS_WEIGHT:
        numbers = numbers * weights
    if HAS_BIAS:
        numbers = numbers + biases
    tl.store(out + row[:, None] * out_stride + column, numbers, mask=inside)


def norm(
    out: Tensor,
    x: Tensor,
    groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    center: bool,
) -> None:
    """Normalize each of `groups` equal parts of each row, in float32.

    Args:
        out, x: [T, columns]; `out` may be `x`.
        weight, bias: [columns / groups] float32, or none.
        center: whether it is LayerNorm, which subtracts the mean.
    """
    rows, columns = x.shape
    width = columns // groups
    tile = whole_row(width)
    lines = rows * groups
    _norm[(triton.cdiv(lines, tile.rows),)](
        out,
        x,
        x if weight is None else weight,
        x if bias is None else bias,
        lines,
        eps,
        out.stride(0),
        x.stride(0),
        GROUPS=groups,
        WIDTH=width,
        LINES=tile.rows,
        COLUMNS=tile.columns,
        CENTER=center,
        HAS_WEIGHT=weight is not None,
        HAS_BIAS=bias is not None,
        num_warps=tile.warps,
        **launch_options(),
    )
