"""Layout: finds the token axes of a tensor, by its place in memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Axis(NamedTuple):
    """An axis of a tensor, or a part of one.

    Attributes:
        stride: distance in numbers.
        is_token: whether it runs over the rows of a matrix.
    """

    size: int
    stride: int
    is_token: bool


def axes_of(tensor: Tensor, rows: int, row_stride: int) -> list[Axis] | None:
    """The axes of a tensor whose rows are `row_stride` numbers apart, without those of length 1.

    An axis over both heads and tokens, such as that of [tokens * heads, head_dim], is two axes.

    Returns:
        None if no axis runs over this many rows.
    """
    axes: list[Axis] = []
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        inner = size // rows
        if any(one.is_token for one in axes) or size % rows or inner * stride != row_stride:
            axes += [Axis(size, stride, False)] if size > 1 else []
            continue
        axes.append(Axis(rows, row_stride, True))
        if inner > 1:
            axes.append(Axis(inner, stride, False))
    return axes if any(one.is_token for one in axes) else None


def places(axes: list[Axis], row_stride: int, steps: list[int] | None = None) -> Tensor:
    """The position of each number of a tensor, in logical order.

    Args:
        row_stride: distance of rows.
        steps: distance of numbers along each axis other than the tokens'; None for the strides.
    """
    place = torch.zeros((), dtype=torch.int64)
    others = iter([one.stride for one in axes if not one.is_token] if steps is None else steps)
    for axis in axes:
        step = row_stride if axis.is_token else next(others)
        place = place[..., None] + torch.arange(axis.size) * step
    return place.flatten()


def columns_of(axes: list[Axis]) -> Tensor:
    """The position of each column in a row, in logical order."""
    return places([one for one in axes if not one.is_token], 0)


def dense_steps(axes: list[Axis]) -> list[int]:
    """Distances of numbers along each axis other than the tokens', if they lie in logical order."""
    sizes = [one.size for one in axes if not one.is_token]
    steps, step = [], 1
    for size in reversed(sizes):
        steps.append(step)
        step *= size
    return steps[::-1]


def by_token(value: Any, tokens: int) -> Any:
    """The same tensors with the numbers of each token together, as our kernels order them."""
    if isinstance(value, tuple):
        return tuple(by_token(one, tokens) for one in value)
    if not isinstance(value, Tensor) or tokens not in value.shape:
        return value
    axis = value.shape.index(tokens)
    return value.movedim(axis, 0).contiguous().movedim(0, axis)
