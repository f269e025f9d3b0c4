"""Groups: the groups of a packed step's rows that a module with states computes together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.model.attention.base import IntArray
from engine.model.state.cache import Sequences


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that are computed at once: of equal length, and either all new or none.

    Attributes:
        tokens: [R, c] int64 on the device, indices of their tokens in the packed step.
    """

    tokens: Tensor
    sequences: Sequences

    def tokenwise(self) -> Iterator[Group]:
        """Split into groups of one token each."""
        for at in range(self.tokens.shape[1]):
            are_new = self.sequences.are_new and at == 0
            yield Group(self.tokens[:, at : at + 1], self.sequences._replace(are_new=are_new))


def groups_of(
    index: IntArray, starts: IntArray, counts: IntArray, device: torch.device
) -> list[Group]:
    """The groups of a packed step.

    Args:
        index, starts, counts: see `engine.model.attention.batch.PackedRows`.
    """
    offsets = np.cumsum(counts) - counts
    are_new = starts == 0
    groups: list[Group] = []
    for count, new in sorted(set(zip(counts.tolist(), are_new.tolist(), strict=True))):
        (rows,) = np.nonzero((counts == count) & (are_new == new))
        tokens = offsets[rows][:, None] + np.arange(count)
        slots = torch.from_numpy(index[rows]).to(device)
        groups.append(Group(torch.from_numpy(tokens).to(device), Sequences(slots, new)))
    return groups


def gather(value: Any, tokens: Tensor, total: int) -> Any:
    """The part of a module's argument for some tokens of a packed step of `total`.

    This applies to tensors of [1, total, ...], also within tuples. Other arguments are for all
    tokens.
    """
    if isinstance(value, Tensor):
        packed = value.ndim >= 2 and value.shape[:2] == (1, total)
        return value[0][tokens] if packed else value
    if isinstance(value, (tuple, list)):
        return type(value)(gather(one, tokens, total) for one in value)
    return value


def scatter(whole: Any, part: Any, tokens: Tensor, total: int) -> Any:
    """Write `part`, a module's output for some tokens, into its output for a packed step.

    Args:
        whole: the output so far; None at first.
        part: a tensor of [R, c, ...], or a tuple with such tensors; its other items are left out.
    """
    if isinstance(part, Tensor):
        if part.ndim < 2 or part.shape[:2] != tokens.shape:
            return whole
        if whole is None:
            whole = part.new_empty(1, total, *part.shape[2:])
        whole[0][tokens] = part
        return whole
    if isinstance(part, (tuple, list)):
        parts = whole or (None,) * len(part)
        return tuple(scatter(one, new, tokens, total) for one, new in zip(parts, part, strict=True))
    return whole
