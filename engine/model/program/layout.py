"""Layout: which axes of a tensor are the tokens of a pass, by the memory that it lies in."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Axis(NamedTuple):
    """An axis of a tensor, or a part of one.

    Attributes:
        stride: in numbers.
        is_token: whether it runs over the rows of a matrix.
    """

    size: int
    stride: int
    is_token: bool


def axes_of(tensor: Tensor, rows: int, row_stride: int) -> list[Axis] | None:
    """The axes of a tensor whose rows lie `row_stride` numbers apart, those of one number left out.

    An axis that goes through heads and tokens alike, such as that of [tokens * heads, head_dim], is
    two axes.

    Returns:
        None if none of them runs over so many rows.
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
    """For each number of a tensor in its logical order, where it is.

    Args:
        row_stride: how far rows are apart.
        steps: how far the numbers of each axis that is not the tokens' are apart; None: by strides.
    """
    place = torch.zeros((), dtype=torch.int64)
    others = iter([one.stride for one in axes if not one.is_token] if steps is None else steps)
    for axis in axes:
        step = row_stride if axis.is_token else next(others)
        place = place[..., None] + torch.arange(axis.size) * step
    return place.flatten()


def columns_of(axes: list[Axis]) -> Tensor:
    """For each column in its logical order, where in a row it is."""
    return places([one for one in axes if not one.is_token], 0)


def dense_steps(axes: list[Axis]) -> list[int]:
    """How far the numbers of each axis but the tokens' are apart if they lie in logical order."""
    sizes = [one.size for one in axes if not one.is_token]
    steps, step = [], 1
    for size in reversed(sizes):
        steps.append(step)
        step *= size
    return steps[::-1]


def by_token(value: Any, tokens: int) -> Any:
    """The same tensors with the numbers of each token together, as our kernels lay them out."""
    if isinstance(value, tuple):
        return tuple(by_token(one, tokens) for one in value)
    if not isinstance(value, Tensor) or tokens not in value.shape:
        return value
    axis = value.shape.index(tokens)
    return value.movedim(axis, 0).contiguous().movedim(0, axis)
