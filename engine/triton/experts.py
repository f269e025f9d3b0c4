"""A mixture of experts: rows are routed, sorted by their experts, and multiplied in groups.

Five launches, none of which waits for the host, so that a CUDA graph can hold them: `route` and
`sort`, a product up with the gate, a product down with the weight of the expert, and the sum of a
row's experts, in their order. Groups are cut into tiles of rows, as in Megatron's grouped products
and vLLM's fused experts. A tile's place depends only on the number of rows of the experts before
its own, so that no launch has to know the sizes of all groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.triton.activation import activate
from engine.triton.interpreter import is_interpreted
from engine.triton.overlap import launch_options, let_next_start, wait_for_previous
from engine.triton.tile import padded, part_of_row

# A tile: its expert, -1 where there is none, the first of its sorted rows, and how many it has.
TILE_FIELDS = tl.constexpr(3)
# Entries that a program of `sort` reads in one turn.
_SCANNED = 1024
# Rows of an expert, on average, from which tiles of many rows are fuller than half.
_MANY = 32


@dataclass(frozen=True, slots=True)
class Group:
    """The tiles of the products of experts.

    Attributes:
        rows: of a tile; a power of two, 16 at least.
        columns, depth: of a matrix that a program reads at once.
        stages: turns of them under way.
    """

    rows: int
    columns: int
    depth: int
    stages: int


def group_for(entries: int, experts: int, itemsize: int, *, is_gated: bool) -> Group:
    """The tiles of a product, with some 64 to 80 KB of shared memory for a program.

    Args:
        entries: rows times experts of each.
        itemsize: bytes of a number.
    """
    part = itemsize // 2
    if entries < _MANY * experts:
        # Reading the matrix takes most of the time, and it is read once.
        return Group(16, 32 if is_gated else 64, 128 // part, 4)
    return Group(64, 64, 64 // part, 3) if part == 1 else Group(32, 32, 32, 3)


def num_tiles(entries: int, experts: int, rows: int) -> int:
    """Most tiles of so many entries: one for each entry if these are few, else the full ones plus
    one for each expert.
    """
    return min(entries, entries // rows + experts)


@dataclass(frozen=True, slots=True)
class RouteWay:
    """How logits choose experts. Attributes as of `engine.model.program.routing.Routing`."""

    chosen: int
    score: str
    groups: int
    kept: int
    best: int
    normalised: bool
    scale: float
    correction: Tensor | None
    factors: Tensor | None


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """The matrices of all experts: [experts, lines, columns], with adjacent columns.

    Attributes:
        gate: None if there is none; then `up` is activated.
        biases: [experts, lines] float32, contiguous, of gate, up and down, or of up and down; or
            none.
        activation: one of `engine.triton.activation.ACTIVATIONS`.
        limit: gates are at most this, and ups within it and its negative; infinite for no limit.
        shift: is added to ups.
    """

    gate: Tensor | None
    up: Tensor
    down: Tensor
    biases: tuple[Tensor, ...]
    activation: str
    limit: float = float("inf")
    shift: float = 0.0


@dataclass(frozen=True, slots=True)
class ExpertRoom:
    """The buffers between the launches of a layer, for `entries` rows times experts.

    Attributes:
        index, weight, order: [entries], the expert of each entry, -1 for none, and its weight; and
            the entries by their experts.
        tiles: [most tiles, TILE_FIELDS].
        inner, made: [entries, columns], the input of the second product, and the result.
    """

    index: Tensor
    weight: Tensor
    order: Tensor
    tiles: Tensor
    inner: Tensor
    made: Tensor


def room_for(
    entries: int, experts: int, inner: int, width: int, dtype: torch.dtype, device: torch.device
) -> ExpertRoom:
    """Buffers for steps of at most so many entries."""

    def words(*shape: int, kind: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(*shape, dtype=kind, device=device)

    return ExpertRoom(
        words(entries),
        words(entries, kind=torch.float32),
        words(entries),
        words(num_tiles(entries, experts, 16), int(TILE_FIELDS.value)),
        words(entries, inner, kind=dtype),
        words(entries, width, kind=dtype),
    )


@triton.jit
def _greatest(values, at):
    """The greatest number of a matrix and its place, the first of equals."""
    most = tl.max(tl.max(values, 1), 0)
    places = tl.where(values == most, at, 0x7FFFFFFF)
    return most, tl.min(tl.min(places, 1), 0)


@triton.jit
def _route(
    index,
    weight,
    logits,
    rows,
    correction,
    factors,
    scale,
    logits_stride,
    EXPERTS: tl.constexpr,
    GROUPS: tl.constexpr,
    PADDED_GROUPS: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    CHOSEN: tl.constexpr,
    PADDED_CHOSEN: tl.constexpr,
    KEPT: tl.constexpr,
    BEST: tl.constexpr,
    IS_SOFTMAX: tl.constexpr,
    IS_NORMALISED: tl.constexpr,
    HAS_CORRECTION: tl.constexpr,
    HAS_FACTORS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Choose the experts of a row; the grid is [T]."""
    let_next_start(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    size: tl.constexpr = EXPERTS // GROUPS
    group = tl.arange(0, PADDED_GROUPS)
    place = tl.arange(0, PADDED_SIZE)
    at = group[:, None] * size + place[None, :]
    inside = (group < GROUPS)[:, None] & (place < size)[None, :]
    choice = tl.arange(0, PADDED_CHOSEN)
    is_choice = choice < CHOSEN
    wait_for_previous(OVERLAP)
    is_padding = tl.load(rows + token) < 0
    low = float("-inf")
    given = tl.load(logits + token * logits_stride + at, mask=inside, other=low)
    if IS_SOFTMAX:
        above = tl.exp(given - tl.max(tl.max(given, 1), 0))
        scores = above / tl.sum(tl.sum(above, 1), 0)
    else:
        scores = tl.sigmoid(given)
    # Without a correction the logits themselves decide, because different logits may have equal
    # scores.
    choices = given
    if HAS_CORRECTION:
        choices = scores + tl.load(correction + at, mask=inside, other=0.0)
    elif BEST > 1:
        choices = scores
    choices = tl.where(inside, choices, low)
    if GROUPS > 1:
        left = choices
        quality = tl.zeros([PADDED_GROUPS], tl.float32)
        for _ in tl.static_range(BEST):
            most = tl.max(left, 1)
            first = tl.min(tl.where(left == most[:, None], place[None, :], PADDED_SIZE), 1)
            left = tl.where(place[None, :] == first[:, None], low, left)
            quality += most
        quality = tl.where(group < GROUPS, quality, low)
        is_kept = tl.zeros([PADDED_GROUPS], tl.int32)
        for _ in tl.static_range(KEPT):
            most = tl.max(quality, 0)
            first = tl.min(tl.where(quality == most, group, PADDED_GROUPS), 0)
            is_kept = tl.where(group == first, 1, is_kept)
            quality = tl.where(group == first, low, quality)
        choices = tl.where(is_kept[:, None] > 0, choices, low)
    chosen = tl.zeros([PADDED_CHOSEN], tl.int32)
    weighed = tl.zeros([PADDED_CHOSEN], tl.float32)
    for number in tl.static_range(CHOSEN):
        _, best = _greatest(choices, at)
        is_best = at == best
        score = tl.sum(tl.sum(tl.where(is_best & inside, scores, 0.0), 1), 0)
        # NaN logits are never the greatest.
        chosen = tl.where(choice == number, tl.minimum(best, EXPERTS - 1), chosen)
        weighed = tl.where(choice == number, score, weighed)
        choices = tl.where(is_best, low, choices)
    if IS_NORMALISED:
        weighed = weighed / tl.sum(weighed, 0)
    if HAS_FACTORS:
        weighed = weighed * tl.load(factors + chosen, mask=is_choice, other=0.0)
    entry = token * CHOSEN + choice
    tl.store(index + entry, tl.where(is_padding, -1, chosen), mask=is_choice)
    tl.store(weight + entry, scale * weighed, mask=is_choice)


@triton.jit(do_not_specialize=["entries", "num_tiles"])
def _sort(
    order,
    tiles,
    index,
    entries,
    num_tiles,
    EXPERTS: tl.constexpr,
    ROWS: tl.constexpr,
    SCANNED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Place the entries of an expert after those of the experts before it; the grid is
    [EXPERTS]."""
    let_next_start(OVERLAP)
    expert = tl.program_id(0)
    at = tl.arange(0, SCANNED)
    wait_for_previous(OVERLAP)
    before = 0
    own = 0
    for first in range(0, entries, SCANNED):
        other = tl.load(index + first + at, mask=first + at < entries, other=-1)
        before += tl.sum(((other >= 0) & (other < expert)).to(tl.int32), 0)
        own += tl.sum((other == expert).to(tl.int32), 0)
    taken = before
    for first in range(0, entries, SCANNED):
        is_own = tl.load(index + first + at, mask=first + at < entries, other=-1) == expert
        rank = tl.cumsum(is_own.to(tl.int32), 0)
        tl.store(order + taken + rank - 1, first + at, mask=is_own)
        taken += tl.sum(is_own.to(tl.int32), 0)
    # With few entries each one has a tile; otherwise an expert has one tile more than it can fill.
    if num_tiles == entries:
        tile = before
        end = before + own
    else:
        tile = before // ROWS + expert
        end = (before + own) // ROWS + expert + 1
    if expert == EXPERTS - 1:
        end = num_tiles
    for first in range(tile, end, SCANNED):
        number = first + at
        begin = (number - tile) * ROWS
        fields = tiles + number * TILE_FIELDS
        inside = number < end
        tl.store(fields, tl.where(begin < own, expert, -1), mask=inside)
        tl.store(fields + 1, before + begin, mask=inside)
        tl.store(fields + 2, tl.minimum(own - begin, ROWS), mask=inside)


@triton.jit
def _multiply(
    out,
    x,
    gate,
    up,
    gate_bias,
    up_bias,
    weight,
    tiles,
    order,
    columns,
    width,
    limit,
    shift,
    out_stride,
    x_stride,
    gate_expert_stride,
    gate_line_stride,
    up_expert_stride,
    up_line_stride,
    CHOSEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    IS_EVEN: tl.constexpr,
    IS_DOWN: tl.constexpr,
    IS_GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_LIMIT: tl.constexpr,
    ACTIVATION: tl.constexpr,
    UPCAST: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Multiply a tile's rows with COLUMNS lines of its expert; the grid is [tiles, programs].

    The product up gathers rows by their entries and leaves them sorted. The product down (IS_DOWN)
    takes sorted ones, weighs them and leaves each at its entry.
    """
    let_next_start(OVERLAP)
    tile = tiles + tl.program_id(0) * TILE_FIELDS
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    line = tl.arange(0, ROWS)
    at = tl.arange(0, DEPTH)
    wait_for_previous(OVERLAP)
    expert = tl.load(tile).to(tl.int64)
    if expert < 0:
        return
    begin = tl.load(tile + 1)
    is_row = line < tl.load(tile + 2)
    is_column = column < columns
    entry = tl.load(order + begin + line, mask=is_row, other=0)
    row = (begin + line if IS_DOWN else entry // CHOSEN).to(tl.int64)
    numbers_at = x + row[:, None] * x_stride + at[None, :]
    # A line past the end is read as the last one, and not stored.
    lines = tl.minimum(column, columns - 1).to(tl.int64)
    up_at = up + expert * up_expert_stride + lines[None, :] * up_line_stride + at[:, None]
    gate_at = gate + expert * gate_expert_stride + lines[None, :] * gate_line_stride + at[:, None]
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    others = tl.zeros([ROWS, COLUMNS if IS_GATED else 1], tl.float32)
    for first in range(0, width, DEPTH):
        inside = at < (DEPTH if IS_EVEN else width - first)
        numbers = tl.load(numbers_at + first, mask=is_row[:, None] & inside[None, :], other=0.0)
        part = tl.load(up_at + first, mask=inside[:, None], other=0.0)
        if UPCAST:
            numbers = numbers.to(tl.float32)
            part = part.to(tl.float32)
        sums = tl.dot(numbers, part, sums, input_precision="ieee")
        if IS_GATED:
            part = tl.load(gate_at + first, mask=inside[:, None], other=0.0)
            if UPCAST:
                part = part.to(tl.float32)
            others = tl.dot(numbers, part, others, input_precision="ieee")
    if HAS_BIAS:
        place = expert * columns + column
        sums += tl.load(up_bias + place, mask=is_column, other=0.0)[None, :]
        if IS_GATED:
            others += tl.load(gate_bias + place, mask=is_column, other=0.0)[None, :]
    if IS_GATED:
        if HAS_LIMIT:
            others = tl.minimum(others, limit)
            sums = tl.minimum(tl.maximum(sums, -limit), limit)
        result = activate(others, ACTIVATION) * (sums + shift)
    else:
        result = activate(sums, ACTIVATION)
    if IS_DOWN:
        result = result * tl.load(weight + entry, mask=is_row, other=0.0)[:, None]
        to = entry.to(tl.int64)
    else:
        to = (begin + line).to(tl.int64)
    tl.store(
        out + to[:, None] * out_stride + column[None, :],
        result,
        mask=is_row[:, None] & is_column[None, :],
    )


@triton.jit
def _add_up(
    out,
    made,
    index,
    out_stride,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHOSEN: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Add up the results of a row's experts; the grid is [T, parts of a row]."""
    let_next_start(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    wait_for_previous(OVERLAP)
    total = tl.zeros([COLUMNS], tl.float32)
    for number in tl.static_range(CHOSEN):
        entry = token * CHOSEN + number
        # Padding has no experts, and its memory may contain NaNs.
        inside = (at < WIDTH) & (tl.load(index + entry) >= 0)
        total += tl.load(made + entry * WIDTH + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * out_stride + at, total, mask=at < WIDTH)


def route(index: Tensor, weight: Tensor, logits: Tensor, rows: Tensor, way: RouteWay) -> None:
    """Choose the experts of each row.

    Args:
        index, weight: [T * chosen], as of `ExpertRoom`.
        logits: [T, experts] float32.
        rows: [T] int32; those of padding are -1.
    """
    tokens, experts = logits.shape
    _route[(tokens,)](
        index,
        weight,
        logits,
        rows,
        logits if way.correction is None else way.correction,
        logits if way.factors is None else way.factors,
        way.scale,
        logits.stride(0),
        EXPERTS=experts,
        GROUPS=way.groups,
        PADDED_GROUPS=padded(way.groups),
        PADDED_SIZE=padded(experts // way.groups),
        CHOSEN=way.chosen,
        PADDED_CHOSEN=padded(way.chosen),
        KEPT=way.kept,
        BEST=way.best,
        IS_SOFTMAX=way.score == "softmax",
        IS_NORMALISED=way.normalised,
        HAS_CORRECTION=way.correction is not None,
        HAS_FACTORS=way.factors is not None,
        num_warps=1,
        **launch_options(),
    )


def sort(order: Tensor, tiles: Tensor, index: Tensor, experts: int, rows: int) -> None:
    """Sort entries by their experts, and cut those of each into tiles.

    Args:
        tiles: [num_tiles(entries, experts, rows), TILE_FIELDS].
        index: [entries].
    """
    _sort[(experts,)](
        order,
        tiles,
        index,
        len(index),
        len(tiles),
        EXPERTS=experts,
        ROWS=rows,
        SCANNED=_SCANNED,
        num_warps=4,
        **launch_options(),
    )


def experts(
    out: Tensor,
    x: Tensor,
    logits: Tensor,
    rows: Tensor,
    way: RouteWay,
    weights: ExpertWeights,
    room: ExpertRoom,
) -> None:
    """The weighted sum of each row's experts: 0 for rows of padding.

    Args:
        out, x: [T, width].
        logits: [T, experts] float32.
        rows: [T] int32; those of padding are -1.
        room: for T rows times experts, or for more.
    """
    tokens, width = x.shape
    num_experts = len(weights.up)
    entries = tokens * way.chosen
    size, is_gated = x.element_size(), weights.gate is not None
    index, weight, order = (one[:entries] for one in (room.index, room.weight, room.order))
    up = group_for(entries, num_experts, size, is_gated=is_gated)
    down = group_for(entries, num_experts, size, is_gated=False)
    tiles = room.tiles[: num_tiles(entries, num_experts, up.rows)]
    route(index, weight, logits, rows, way)
    sort(order, tiles, index, num_experts, up.rows)

    def multiply(
        to: Tensor, given: Tensor, lines: Tensor, gate: Tensor | None, group: Group, **named: Any
    ) -> None:
        columns, depth = lines.shape[1:]
        other = lines if gate is None else gate
        *before, bias = named.pop("biases") or (None,)
        _multiply[len(tiles), triton.cdiv(columns, group.columns)](
            to,
            given,
            other,
            lines,
            before[0] if before else weight,
            weight if bias is None else bias,
            weight,
            tiles,
            order,
            columns,
            depth,
            weights.limit,
            weights.shift,
            to.stride(0),
            given.stride(0),
            other.stride(0),
            other.stride(1),
            lines.stride(0),
            lines.stride(1),
            CHOSEN=way.chosen,
            ROWS=group.rows,
            COLUMNS=group.columns,
            DEPTH=group.depth,
            IS_EVEN=depth % group.depth == 0,
            IS_GATED=gate is not None,
            HAS_BIAS=bias is not None,
            HAS_LIMIT=weights.limit != float("inf"),
            UPCAST=is_interpreted(),
            num_warps=4,
            num_stages=group.stages,
            **named,
            **launch_options(),
        )

    multiply(
        room.inner,
        x,
        weights.up,
        weights.gate,
        up,
        biases=weights.biases[:-1],
        IS_DOWN=False,
        ACTIVATION=weights.activation,
    )
    multiply(
        room.made,
        room.inner,
        weights.down,
        None,
        down,
        biases=weights.biases[-1:],
        IS_DOWN=True,
        ACTIVATION="none",
    )
    part = part_of_row(width)
    _add_up[tokens, triton.cdiv(width, part.columns)](
        out,
        room.made,
        index,
        out.stride(0),
        WIDTH=width,
        COLUMNS=part.columns,
        CHOSEN=way.chosen,
        num_warps=part.warps,
        **launch_options(),
    )
