"""Packing of a model's matrices into the order in which the kernels read them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from engine.model.program.arena import Arena
from engine.model.program.coded import Coded, Scales
from engine.model.program.graph import Embed, Experts, Gated, Linear, Operation
from engine.model.program.originals import Originals
from engine.model.program.weights import Rows, Weight, dense

# Output features of a tile. A tile of gates and a tile of ups take turns.
_TILE = 16

_Place = tuple[int, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Product:
    """What a product multiplies, packed.

    Attributes:
        bias: in float32.
        how: `_native.Quantization` of the weight; None if it is of the model's type.
    """

    weight: Tensor
    bias: Tensor | None
    how: Any


# Makes one matrix of several.
_Join = Callable[[Sequence[Tensor]], Tensor]


class Packer:
    """Packs weights and lets go of the originals as it goes.

    Packed matrices are as large as the originals, or smaller, so that loading needs room for one
    matrix more and not for a second model.

    Args:
        native: the compiled kernels.
        coded: which of the model's parameters are quantized, if any.
    """

    def __init__(
        self,
        native: ModuleType,
        model: nn.Module,
        operations: Iterable[Operation],
        coded: Coded | None = None,
    ) -> None:
        self._native = native
        self._arena = Arena(native)
        self._originals = Originals(model, operations)
        self._coded = coded
        self._packed: dict[_Place, tuple[Tensor, Any]] = {}

    def linear(self, operation: Linear) -> Product:
        """The weights of a product, which itself has none from now on."""
        weight, how = self._pack(operation.weights, _below_each_other)
        if len(operation.weights) == 1 and not isinstance(operation.weights[0], Rows):
            self._packed[_place(operation.weights[0])] = weight, how
        bias = torch.cat([bias.float() for bias in operation.biases]) if operation.biases else None
        self._give_up(operation)
        return Product(weight, bias, how)

    def gated(self, operation: Gated) -> Product:
        """As `linear`, of a gated product: 16 gates, their 16 ups, the next 16 gates, and so on."""
        weight, how = self._pack(operation.weights, _take_turns)
        biases = [bias.float()[:, None] for bias in operation.biases]
        bias = _take_turns(biases).flatten() if biases else None
        self._give_up(operation)
        return Product(weight, bias, how)

    def experts(self, operation: Experts) -> tuple[Product, Product]:
        """The products up and down of all experts, one after the other; up as `gated`, if there is
        a gate.
        """
        *ups, down = operation.weights
        packed = [self._pack_each(ones) for ones in (ups, [down])]
        biases: list[Tensor | None] = [None, None]
        if operation.biases:
            *firsts, last = (bias.float() for bias in operation.biases)
            columns = (tuple(one[:, None] for one in ones) for ones in zip(*firsts, strict=True))
            biases = [torch.cat([_side_by_side(one).flatten() for one in columns]), last.flatten()]
        self._give_up(operation)
        (up, up_how), (low, low_how) = packed
        return Product(up, biases[0], up_how), Product(low, biases[1], low_how)

    def table(self, operation: Embed) -> tuple[Tensor, bool, Any]:
        """The rows to look up, whether they are a product's packed weights (a tied head), and how
        these are quantized.
        """
        packed = self._packed.get(_place(operation.table))
        if packed is not None:
            self._give_up(operation)
            return packed[0], True, packed[1]
        return operation.table.contiguous(), False, None

    def _pack(self, weights: Sequence[Weight], join: _Join) -> tuple[Tensor, Any]:
        matrix = join([dense(one) for one in weights]).contiguous()
        found = self._scales(weights)
        if found is None:
            packed = self._arena.take(self._native.packed_size(*matrix.shape), matrix.dtype)
            self._native.pack_linear(matrix, packed)
            return packed, None
        packed = self._arena.take(self._native.coded_size(*matrix.shape, found[0].how), torch.uint8)
        self._pack_codes(matrix, found, join, packed)
        return packed, found[0].how

    def _pack_each(self, weights: Sequence[Tensor]) -> tuple[Tensor, Any]:
        """Experts one by one, so that no copy of all of them but the packed one is made."""
        experts = list(zip(*weights, strict=True))
        shape, dtype = _side_by_side(experts[0]).shape, experts[0][0].dtype
        found = self._scales(weights)
        if found is None:
            packed = self._arena.take(len(experts) * self._native.packed_size(*shape), dtype)
            for part, ones in zip(packed.chunk(len(experts)), experts, strict=True):
                self._native.pack_linear(_side_by_side(ones).contiguous(), part)
            return packed, None
        how = found[0].how
        size = len(experts) * self._native.coded_size(*shape, how)
        packed = self._arena.take(size, torch.uint8)
        for at, (part, ones) in enumerate(zip(packed.chunk(len(experts)), experts, strict=True)):
            scales = [one.of(at) for one in found]
            self._pack_codes(_side_by_side(ones).contiguous(), scales, _side_by_side, part)
        return packed, how

    def _pack_codes(
        self, matrix: Tensor, found: Sequence[Scales], join: _Join, packed: Tensor
    ) -> None:
        scales = join([one.scales for one in found]).contiguous()
        given = [one.zeros for one in found if one.zeros is not None]
        zeros = join(given).contiguous() if given else None
        self._native.pack_coded(matrix, scales, zeros, found[0].how, packed)

    def _scales(self, weights: Sequence[Weight]) -> list[Scales] | None:
        """The scales of weights that are packed together, brought to one way; None if one of them
        has none.
        """
        if self._coded is None:
            return None
        found = [self._coded.of(one) for one in weights]
        scales = [one for one in found if one is not None]
        if len(scales) < len(weights):
            return None
        if len({one.way for one in scales}) == 1:
            return scales
        bits, groups, with_zeros = zip(*(one.way for one in scales), strict=True)
        how = self._native.Quantization(max(bits), math.gcd(*groups), any(with_zeros))
        return [one.widened(how, weights[0].shape[-1]) for one in scales]

    def _give_up(self, operation: Linear | Gated | Experts | Embed) -> None:
        self._originals.give_up(operation)
        self._native.trim_heap()


def _side_by_side(weights: Sequence[Tensor]) -> Tensor:
    """The weights of gate and up as a gated product has them, or those of a plain one."""
    return weights[0] if len(weights) == 1 else _take_turns(weights)


def _below_each_other(weights: Sequence[Tensor]) -> Tensor:
    return weights[0] if len(weights) == 1 else torch.cat(list(weights))


def _take_turns(weights: Sequence[Tensor]) -> Tensor:
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
