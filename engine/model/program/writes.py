"""Writes: detects which of its arguments a call changes in place, and keeps their old content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Change:
    """A tensor that a call wrote to.

    Attributes:
        before: the old content of all its memory, in one row; None if not copied.
    """

    tensor: Tensor
    before: Tensor | None


class Writes:
    """Write counts of some tensors before a call.

    Args:
        given: the arguments of the coming call.
        name: name of the called function. If torch's name says that it changes its first argument,
            that one's memory is copied.
    """

    def __init__(self, given: Sequence[Tensor], name: str = "") -> None:
        counted = [one for one in given if not one.is_inference()]
        self._counts = [(one, one._version) for one in counted]
        self._before: dict[int, Tensor] = {}
        if counted and (out_of_place(name) != name or name == "__setitem__"):
            self._before[id(counted[0])] = _memory(counted[0]).clone()

    def changed(self) -> tuple[Change, ...]:
        """The tensors that have been written to since."""
        return tuple(
            Change(one, self._before.get(id(one)))
            for one, count in self._counts
            if one._version != count
        )


def out_of_place(name: str) -> str:
    """The torch function that computes what this one writes to its first argument: `mul` for
    `mul_`, `__add__` for `__iadd__`; any other name is unchanged.
    """
    if name.endswith("__"):
        plain = f"__{name[3:]}"
        return plain if name.startswith("__i") and hasattr(Tensor, plain) else name
    return name.removesuffix("_")


def _memory(tensor: Tensor) -> Tensor:
    """All memory of which a tensor shows a part, in one row."""
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())
