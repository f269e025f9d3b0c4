"""Activations, sums and products, number by number."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.triton.activation import activate
from engine.triton.overlap import launch_options, let_next_start, wait_for_previous
from engine.triton.tile import part_of_row


# The number of rows changes from step to step. Specialized, it would be compiled each time.
@triton.jit(do_not_specialize=["rows"])
def _elementwise(
    out,
    x,
    y,
    rows,
    alpha,
    out_stride,
    x_stride,
    y_stride,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    COMBINE: tl.constexpr,
    ACTIVATION: tl.constexpr,
    Y_IS_ROW: tl.constexpr,
    Y_REPEAT: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Compute a tile; the grid is [tiles of rows, tiles of columns]."""
    let_next_start(OVERLAP)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    # A matrix of one row, because a vector would be loaded by other threads than those that need
    # it.
    at = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    is_column = at < WIDTH
    inside = (row < rows)[:, None] & is_column
    wait_for_previous(OVERLAP)
    result = tl.load(x + row[:, None] * x_stride + at, mask=inside, other=0.0)
    result = result.to(tl.float32)
    if COMBINE == "none":
        result = activate(alpha * result, ACTIVATION)
    else:
        if Y_IS_ROW:
            other = tl.load(y + at, mask=is_column, other=0.0).to(tl.float32)
        else:
            other = tl.load(y + row[:, None] * y_stride + at // Y_REPEAT, mask=inside, other=0.0)
            other = other.to(tl.float32)
        if COMBINE == "add":
            result = result + alpha * other
        else:
            tl.static_assert(COMBINE == "multiply")
            result = alpha * activate(result, ACTIVATION) * other
    tl.store(out + row[:, None] * out_stride + at, result, mask=inside)


def elementwise(
    out: Tensor,
    x: Tensor,
    combine: str = "none",
    y: Tensor | None = None,
    activation: str = "none",
    alpha: float = 1.0,
) -> None:
    """Compute activation(alpha * x); x + alpha * y; or alpha * activation(x) * y.

    Args:
        out, x: [T, columns], of any types; `out` may be `x` or `y`.
        combine: `none`, `add` or `multiply`.
        y: [T, columns], or [columns] for all rows; None if `combine` is `none`. If it has fewer
            columns than x, each is used for several adjacent ones of x.
        activation: one of `engine.triton.activation.ACTIVATIONS`; `none` if `combine` is `add`.
    """
    rows, width = out.shape
    tile = part_of_row(width)
    other = x if y is None else y
    _elementwise[triton.cdiv(rows, tile.rows), triton.cdiv(width, tile.columns)](
        out,
        x,
        other,
        rows,
        alpha,
        out.stride(0),
        x.stride(0),
        other.stride(0),
        WIDTH=width,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        COMBINE=combine,
        ACTIVATION=activation,
        Y_IS_ROW=other.ndim == 1,
        Y_REPEAT=width // other.shape[-1],
        num_warps=tile.warps,
        **launch_options(),
    )
