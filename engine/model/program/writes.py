"""Writes: which of the tensors that a call is given it changes in place, and what they were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Change:
    """A tensor that a call wrote to.

    Attributes:
        before: what all of its memory held before, in one row; None if nobody looked.
    """

    tensor: Tensor
    before: Tensor | None


class Writes:
    """How often some tensors had been written to.

    Args:
        given: the arguments of a call that is about to be made.
        name: of the function that is called. What torch names as changing its first argument has
            the memory of that one copied.
    """

    def __init__(self, given: Sequence[Tensor], name: str = "") -> None:
        counted = [one for one in given if not one.is_inference()]
        self._counts = [(one, one._version) for one in counted]
        self._before: dict[int, Tensor] = {}
        if counted and (out_of_place(name) != name or name == "__setitem__"):
            self._before[id(counted[0])] = _memory(counted[0]).clone()

    def changed(self) -> tuple[Change, ...]:
        """Those that have been written to since."""
        return tuple(
            Change(one, self._before.get(id(one)))
            for one, count in self._counts
            if one._version != count
        )


def out_of_place(name: str) -> str:
    """The function of torch that computes what this one writes to its first argument: `mul` for
    `mul_`, `__add__` for `__iadd__`; any other is itself.
    """
    if name.endswith("__"):
        plain = f"__{name[3:]}"
        return plain if name.startswith("__i") and hasattr(Tensor, plain) else name
    return name.removesuffix("_")


def _memory(tensor: Tensor) -> Tensor:
    """All the memory that a tensor shows a part of, in one row."""
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())
