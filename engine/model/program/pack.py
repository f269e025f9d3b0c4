"""Packing of a model's matrices into the order in which the kernels read them."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from engine.model.program.arena import Arena
from engine.model.program.graph import Embed, Experts, Gated, Linear, Operation
from engine.model.program.originals import Originals
from engine.model.program.weights import Rows, Weight, dense

# Output features of a tile. A tile of gates and a tile of ups take turns.
_TILE = 16

_Place = tuple[int, tuple[int, ...], tuple[int, ...]]


class Packer:
    """Packs weights and lets go of the originals as it goes.

    Packed matrices are as large as the originals, so that loading needs room for one matrix more
    and not for a second model.

    Args:
        native: the compiled kernels.
    """

    def __init__(
        self, native: ModuleType, model: nn.Module, operations: Iterable[Operation]
    ) -> None:
        self._native = native
        self._arena = Arena(native)
        self._originals = Originals(model, operations)
        self._packed: dict[_Place, Tensor] = {}

    def linear(self, operation: Linear) -> tuple[Tensor, Tensor | None]:
        """Packed weight, and bias in float32, of a product, which itself has none from now on."""
        weight = _below_each_other(operation.weights)
        packed = self._pack(weight)
        if len(operation.weights) == 1 and not isinstance(operation.weights[0], Rows):
            self._packed[_place(weight)] = packed
        bias = torch.cat([bias.float() for bias in operation.biases]) if operation.biases else None
        self._give_up(operation)
        return packed, bias

    def gated(self, operation: Gated) -> tuple[Tensor, Tensor | None]:
        """As `linear`, of a gated product: 16 gates, their 16 ups, the next 16 gates, and so on."""
        packed = self._pack(_take_turns(map(dense, operation.weights)))
        biases = [bias.float()[:, None] for bias in operation.biases]
        bias = _take_turns(biases).flatten() if biases else None
        self._give_up(operation)
        return packed, bias

    def experts(self, operation: Experts) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
        """Packed weight and biases of the products up and down of all experts, one after the other;
        up as `gated`, if there is a gate.
        """
        *ups, down = operation.weights
        packed = [self._pack_each(list(zip(*ones, strict=True))) for ones in (ups, [down])]
        biases: list[Tensor | None] = [None, None]
        if operation.biases:
            *firsts, last = (bias.float() for bias in operation.biases)
            columns = (tuple(one[:, None] for one in ones) for ones in zip(*firsts, strict=True))
            biases = [torch.cat([_side_by_side(one).flatten() for one in columns]), last.flatten()]
        self._give_up(operation)
        return packed[0], biases[0], packed[1], biases[1]

    def table(self, operation: Embed) -> tuple[Tensor, bool]:
        """The rows to look up, and whether they are a product's packed weights (a tied head)."""
        packed = self._packed.get(_place(operation.table))
        if packed is not None:
            self._give_up(operation)
            return packed, True
        return operation.table.contiguous(), False

    def _pack(self, weight: Tensor) -> Tensor:
        packed = self._arena.take(self._native.packed_size(*weight.shape), weight.dtype)
        self._native.pack_linear(weight.contiguous(), packed)
        return packed

    def _pack_each(self, experts: list[tuple[Any, ...]]) -> Tensor:
        """Experts one by one, so that no copy of all of them but the packed one is made."""
        shape = _side_by_side(experts[0]).shape
        packed = self._arena.take(
            len(experts) * self._native.packed_size(*shape), experts[0][0].dtype
        )
        for part, weights in zip(packed.chunk(len(experts)), experts, strict=True):
            self._native.pack_linear(_side_by_side(weights).contiguous(), part)
        return packed

    def _give_up(self, operation: Linear | Gated | Experts | Embed) -> None:
        self._originals.give_up(operation)
        self._native.trim_heap()


def _side_by_side(weights: tuple[Tensor, ...]) -> Tensor:
    """The weights of gate and up as a gated product has them, or those of a plain one."""
    return weights[0] if len(weights) == 1 else _take_turns(weights)


def _below_each_other(weights: tuple[Weight, ...]) -> Tensor:
    return dense(weights[0]) if len(weights) == 1 else torch.cat([dense(one) for one in weights])


def _take_turns(weights: Iterable[Tensor]) -> Tensor:
    """Rows of several matrices of one shape, a tile of each in turn, filled up with zeros."""
    padded = [
        nn.functional.pad(weight, (0, 0, 0, -len(weight) % _TILE)).reshape(
            -1, _TILE, weight.shape[1]
        )
        for weight in weights
    ]
    return torch.stack(padded, dim=1).flatten(0, 2)


def _place(tensor: Tensor) -> _Place:
    """A matrix's address, shape and strides."""
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()
