"""Packing of a model's matrices into the order in which the kernels read them."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

import torch
from torch import Tensor, nn

from engine.model.program.arena import Arena
from engine.model.program.graph import Embed, Gated, Linear, Operation, Rows, Weight, dense
from engine.model.program.originals import Originals

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

    def _give_up(self, operation: Linear | Gated | Embed) -> None:
        self._originals.give_up(operation)
        self._native.trim_heap()


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
