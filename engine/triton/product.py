"""Matrix products of few rows, in one launch with the norm before them and the operations after
them.

With few rows a product takes as long as its matrix takes to be read. Each program reads some of the
matrix's lines from end to end, and no other program does.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from engine.triton.activation import activate
from engine.triton.interpreter import is_interpreted
from engine.triton.overlap import launch_options, let_next_start, wait_for_previous

# Rows of the smallest tile of tensor cores.
MOST_ROWS = 16


@dataclass(frozen=True, slots=True)
class Strip:
    """The part of a matrix that a program has, and how it reads it.

    Attributes:
        lines: lines of the matrix, each of which yields a column of the result; a power of two.
        depth: numbers of each line that are multiplied at once, a power of two.
        warps: of 32 threads.
        stages: steps of `depth` numbers that are under way at once.
    """

    lines: int
    depth: int
    warps: int
    stages: int


# For one row: each thread multiplies the numbers that it loads itself and keeps its own sums, with
# loads of 16 bytes in flight.
_ONE_ROW = (Strip(4, 1024, 4, 1), Strip(8, 512, 4, 1), Strip(2, 2048, 8, 1))
# For several rows: tensor cores, fed by asynchronous copies to shared memory, 32 to 64 KB in flight
# on each multiprocessor.
_FEW_ROWS = (Strip(16, 256, 4, 4), Strip(32, 128, 4, 5), Strip(64, 128, 4, 4))


def strips(rows: int) -> tuple[Strip, ...]:
    """Strips that may be fastest for this many rows, 1 to MOST_ROWS; only a measurement can
    decide."""
    return (*_ONE_ROW, *_FEW_ROWS) if rows == 1 else _FEW_ROWS


def is_for_one_row(strip: Strip) -> bool:
    """Whether a strip can take one row only."""
    return strip.stages == 1


@triton.jit
def _line_starts(weight, width, SIZE: tl.constexpr):
    """Offsets that cover at least SIZE numbers, one cache line (128 bytes) apart: [1, lines]."""
    each: tl.constexpr = 1024 // weight.dtype.element_ty.primitive_bitwidth
    lines: tl.constexpr = triton.next_power_of_2(SIZE // each)
    return tl.minimum(tl.arange(0, lines) * each, width - 1)[None, :]


@triton.jit
def _fetch(pointers):
    """Prefetch these addresses into the GPU's cache, without waiting."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [pointers.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


# The number of rows changes from step to step. Specialized, it would be compiled each time.
@triton.jit(do_not_specialize=["rows"])
def _product(
    out,
    x,
    weight,
    bias,
    residual,
    scales,
    rows,
    columns,
    width,
    eps,
    alpha,
    out_stride,
    x_stride,
    residual_stride,
    ROWS: tl.constexpr,
    LINES: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    IS_EVEN: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    IS_GATED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    UPCAST: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Compute LINES columns of all rows; the grid is [programs].

    Args:
        UPCAST: whether to multiply in float32, for the interpreter, which cannot in bfloat16.
    """
    let_next_start(OVERLAP)
    column = tl.program_id(0) * LINES + tl.arange(0, LINES)
    row = tl.arange(0, ROWS)
    at = tl.arange(0, DEPTH)
    # A line past the end is read as the last one, and not stored.
    line = tl.minimum(column, columns - 1).to(tl.int64) * width
    above = columns.to(tl.int64) * width
    if OVERLAP:
        # No launch writes the matrix, so its first part is fetched while the previous kernel still
        # computes the rows.
        early = weight + line[:, None] + _line_starts(weight, width, DEPTH * STAGES)
        _fetch(early)
        if IS_GATED:
            _fetch(early + above)
    wait_for_previous(OVERLAP)
    is_row = row < rows
    squares = tl.zeros([ROWS], tl.float32)
    if ROWS == 1:
        # Each thread sums its products at the end.
        sums = tl.zeros([LINES, DEPTH], tl.float32)
        others = tl.zeros([LINES if IS_GATED else 1, DEPTH], tl.float32)
    else:
        sums = tl.zeros([ROWS, LINES], tl.float32)
        others = tl.zeros([ROWS, LINES if IS_GATED else 1], tl.float32)
    for first in tl.range(0, width, DEPTH, num_stages=STAGES):
        inside = at < (DEPTH if IS_EVEN else width - first)
        # The matrix is read once; the rows are read by every program.
        if ROWS == 1:
            place = weight + line[:, None] + (first + at)[None, :]
            lines = tl.load(
                place, mask=inside[None, :], other=0.0, eviction_policy="evict_first"
            ).to(tl.float32)
            if IS_GATED:
                more = tl.load(
                    place + above, mask=inside[None, :], other=0.0, eviction_policy="evict_first"
                ).to(tl.float32)
            numbers = tl.load(x + (first + at)[None, :], mask=inside[None, :], other=0.0)
        else:
            place = weight + line[None, :] + (first + at)[:, None]
            lines = tl.load(place, mask=inside[:, None], other=0.0, eviction_policy="evict_first")
            if IS_GATED:
                more = tl.load(
                    place + above, mask=inside[:, None], other=0.0, eviction_policy="evict_first"
                )
            numbers = tl.load(
                x + row[:, None] * x_stride + (first + at)[None, :],
                mask=is_row[:, None] & inside[None, :],
                other=0.0,
            )
        if HAS_NORM:
            wide = numbers.to(tl.float32)
            squares += tl.sum(wide * wide, 1)
            if HAS_SCALES:
                scale = tl.load(scales + (first + at)[None, :], mask=inside[None, :], other=0.0)
                numbers = (wide * scale).to(numbers.dtype)
        if UPCAST:
            numbers = numbers.to(tl.float32)
            lines = lines.to(tl.float32)
            if IS_GATED:
                more = more.to(tl.float32)
        if ROWS == 1:
            sums += lines * numbers.to(tl.float32)
            if IS_GATED:
                others += more * numbers.to(tl.float32)
        else:
            sums = tl.dot(numbers, lines, sums, input_precision="ieee")
            if IS_GATED:
                others = tl.dot(numbers, more, others, input_precision="ieee")
    if ROWS == 1:
        result = tl.sum(sums, 1)[None, :]
        other = tl.sum(others, 1)[None, :]
    else:
        result = sums
        other = others
    if HAS_NORM:
        # A row is divided by its norm last, so that nothing is read twice.
        divisor = tl.rsqrt(squares / width + eps)[:, None]
        result = result * divisor
        other = other * divisor
    is_column = column < columns
    if HAS_BIAS:
        result = result + tl.load(bias + column, mask=is_column, other=0.0)[None, :]
        if IS_GATED:
            other = other + tl.load(bias + columns + column, mask=is_column, other=0.0)[None, :]
    result = activate(result, ACTIVATION)
    if IS_GATED:
        result = result * other
    result = result * alpha
    inside = is_row[:, None] & is_column[None, :]
    if HAS_RESIDUAL:
        place = residual + row[:, None] * residual_stride + column[None, :]
        result = result + tl.load(place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row[:, None] * out_stride + column[None, :], result, mask=inside)


@dataclass(frozen=True, slots=True)
class Normed:
    """RMSNorm (arXiv 1910.07467) of a product's input.

    Attributes:
        scales: [K] float32, or none.
    """

    scales: Tensor | None
    eps: float


def product(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    strip: Strip,
    *,
    norm: Normed | None = None,
    bias: Tensor | None = None,
    activation: str = "none",
    is_gated: bool = False,
    residual: Tensor | None = None,
    alpha: float = 1.0,
) -> None:
    """residual + alpha * activation(norm(x) weight^T + bias), summed in float32.

    If it is gated, the upper half of the result's columns is activated and multiplied by the lower
    one (GLU, arXiv 2002.05202), so that `weight` has 2 N lines and `bias` 2 N numbers.

    A norm's divisor is applied to the result, not to x. So x times the scales must not be too large
    for its type, as in float16 it may be.

    Args:
        out: [T, N], with T from 1 to MOST_ROWS, or to 1 if the strip is for one row.
        x: [T, K]; it may not share memory with `out`.
        weight: [N, K] in one piece.
        bias: [N] float32, or none.
        activation: one of `engine.triton.activation.ACTIVATIONS`.
        residual: [T, N], or none; it may be `out`.
    """
    rows, columns = out.shape
    width = x.shape[1]
    _product[(triton.cdiv(columns, strip.lines),)](
        out,
        x,
        weight,
        x if bias is None else bias,
        x if residual is None else residual,
        x if norm is None or norm.scales is None else norm.scales,
        rows,
        columns,
        width,
        0.0 if norm is None else norm.eps,
        alpha,
        out.stride(0),
        x.stride(0),
        0 if residual is None else residual.stride(0),
        ROWS=1 if is_for_one_row(strip) else MOST_ROWS,
        LINES=strip.lines,
        DEPTH=strip.depth,
        STAGES=strip.stages,
        IS_EVEN=width % strip.depth == 0,
        HAS_NORM=norm is not None,
        HAS_SCALES=norm is not None and norm.scales is not None,
        HAS_BIAS=bias is not None,
        HAS_RESIDUAL=residual is not None,
        IS_GATED=is_gated,
        ACTIVATION=activation,
        UPCAST=is_interpreted(),
        num_warps=strip.warps,
        **launch_options(),
    )
