"""Pack: packs a model's matrices in the order in which the kernels read them, and frees the
originals one by one as a program takes them over.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from engine.model.program.arena import Arena
from engine.model.program.coded import Coded, Scales, StoredRows
from engine.model.program.graph import Operation
from engine.model.program.weights import Weight, address_of, dense, floats, matrix_of

# Output features of a tile. Tiles of gates and tiles of ups alternate.
TILE = 16

_Place = tuple[int, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Product:
    """The packed weight of a product.

    Attributes:
        bias: in float32.
        how: `_native.Quantization` of the weight; None if it has the program's type.
        is_packed: whether the weight is packed, rather than a matrix as a table needs it.
        column, columns: the columns of the result that the product computes.
    """

    weight: Tensor
    bias: Tensor | None
    how: Any
    column: int
    columns: int
    is_packed: bool = True


# Joins several matrices to one.
_Join = Callable[[Sequence[Tensor]], Tensor]


class Originals:
    """Counts the remaining uses of each of a model's parameters.

    Uses by opaque operations never end.

    Args:
        forget: called with each parameter that is no longer used.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        operations: Iterable[Operation],
        forget: Callable[[Tensor], None] = lambda parameter: None,
    ) -> None:
        self._forget = forget
        self._parameters: dict[int, list[Tensor]] = {}
        for parameter in parameters:
            self._parameters.setdefault(address_of(parameter), []).append(parameter)
        self._uses: Counter[int] = Counter()
        for operation in operations:
            self._uses.update(map(address_of, operation.matrices()))

    def give_up(self, operation: Operation) -> None:
        """End an operation's use of its matrices, which have been copied.

        Unused memory is freed once the caller no longer holds it.
        """
        addresses = [address_of(one) for one in operation.matrices()]
        operation.drop_weights()
        for address in addresses:
            self._uses[address] -= 1
            if not self._uses[address]:
                for parameter in self._parameters.pop(address, ()):
                    self._forget(parameter)
                    parameter.data = parameter.data.new_empty(0)


class Packer:
    """Packs weights, and frees the originals along the way.

    Packed matrices are at most as large as the originals, so that loading needs memory for one
    extra matrix, not for a second model.

    Args:
        parameters: the originals.
        arena: packs the weights.
        coded: the model's parameters that are codes, if any.

    Attributes:
        native: the compiled kernels.
        dtype: type of the program.
    """

    def __init__(
        self,
        native: ModuleType,
        parameters: Iterable[Tensor],
        operations: Iterable[Operation],
        dtype: torch.dtype,
        arena: Arena,
        coded: Coded | None = None,
    ) -> None:
        self.native = native
        self._arena = arena
        self.dtype = dtype
        self._coded = coded or Coded()
        self._originals = Originals(parameters, operations, self._coded.compact.forget)
        self._packed: dict[_Place, tuple[Tensor, Any]] = {}

    def remember(self, matrix: Tensor, product: Product) -> None:
        """Record the product of a whole matrix: a table may be the same matrix (`table`)."""
        self._packed[_place(matrix)] = product.weight, product.how

    def way(self, weight: Weight) -> object:
        """A key that is equal for weights that can be packed together without loss."""
        stored = self._coded.stored(weight)
        return None if stored is None else stored.way

    def pack(self, weights: Sequence[Weight], join: _Join) -> tuple[Tensor, Any]:
        """Pack some weights as one; returns the packed one and its quantization, if it has one."""
        stored = self._stored(weights)
        of_blocks = self._pack_stored(stored, join) if stored else None
        if of_blocks is not None:
            return of_blocks
        scales = self._scales(weights)
        shape = _joined([one.shape for one in weights], join)
        if scales is None:

            def fill(packed: Tensor) -> None:
                with self._coded.compact.unpacked(map(matrix_of, weights)):
                    matrix = join([dense(one).to(self.dtype) for one in weights]).contiguous()
                    self.native.pack_linear(matrix, packed)

            return self.pack_always(self.native.packed_size(*shape), self.dtype, fill), None

        def fill_codes(packed: Tensor) -> None:
            matrix = join([self.dense(one) for one in weights]).contiguous()
            self._pack_codes(matrix, scales, join, packed)

        size = self.native.coded_size(*shape, scales[0].how)
        return self.pack_always(size, torch.uint8, fill_codes), scales[0].how

    def table(self, matrix: Tensor) -> tuple[Tensor, Any] | None:
        """A packed matrix whose rows are looked up, and its quantization. None if no product has
        packed it and it is not in stored form.
        """
        packed = self._packed.get(_place(matrix))
        stored = self._coded.stored(matrix) if packed is None else None
        return packed if stored is None else self._pack_stored([stored], below_each_other)

    def is_compact(self, matrix: Tensor) -> bool:
        """Whether a matrix has numbers only during use."""
        return self._coded.compact.of(matrix) is not None

    def _stored(self, weights: Sequence[Weight]) -> list[StoredRows]:
        """The blocks of weights that are packed together; empty if one of them has no blocks."""
        found = [one for one in map(self._coded.stored, weights) if one is not None]
        return found if len(found) == len(weights) else []

    def _pack_stored(self, found: Sequence[StoredRows], join: _Join) -> tuple[Tensor, Any] | None:
        """Pack blocks as codes; None if some of their scales are too large for float16."""
        how, k = self._common(found), found[0].source.width

        def fill(packed: Tensor) -> bool:
            blocks, numbers, before = [], [], 0
            for one in found:
                blocks.append((one.source.blocks, one.source.kind))
                numbers.append(one.rows[:, None] + before + 1)
                before += len(one.source.blocks)
            rows = join(numbers).flatten() - 1  # padding is row -1
            is_packed: bool = self.native.pack_blocks(blocks, rows, k, how, packed)
            return is_packed

        n = _joined([(len(one.rows), k) for one in found], join)[0]
        packed = self._arena.pack(self.native.coded_size(n, k, how), torch.uint8, fill)
        return None if packed is None else (packed, how)

    def pack_each(self, weights: Sequence[Tensor]) -> tuple[Tensor, Any]:
        """Pack experts one by one, so that the packed copy is the only copy of all of them."""
        stored = self._stored(weights)
        of_blocks = self._pack_each_stored(stored) if stored else None
        if of_blocks is not None:
            return of_blocks
        return self._pack_each_dense(weights)

    def _pack_each_stored(self, found: Sequence[StoredRows]) -> tuple[Tensor, Any] | None:
        """As `_pack_stored`, for experts in sequence."""
        how, k = self._common(found), found[0].source.width
        experts = len(found[0].rows)

        def fill(packed: Tensor) -> bool:
            each = [one.source.blocks.chunk(experts) for one in found]
            before = [0, *accumulate(len(ones[0]) for ones in each)]
            numbers = [
                one.rows[0][:, None] + first + 1 for one, first in zip(found, before, strict=False)
            ]
            rows = side_by_side(numbers).flatten() - 1
            return all(
                self.native.pack_blocks(
                    [(ones[at], one.source.kind) for ones, one in zip(each, found, strict=True)],
                    rows,
                    k,
                    how,
                    part,
                )
                for at, part in enumerate(packed.chunk(experts))
            )

        n = _joined([(len(one.rows[0]), k) for one in found], side_by_side)[0]
        size = self.native.coded_size(n, k, how)
        packed = self._arena.pack(experts * size, torch.uint8, fill)
        return None if packed is None else (packed, how)

    def _pack_each_dense(self, weights: Sequence[Tensor]) -> tuple[Tensor, Any]:
        experts = len(weights[0])
        shape = _joined([one.shape[1:] for one in weights], side_by_side)
        found = self._scales(weights)

        def fill(packed: Tensor) -> None:
            each = zip(packed.chunk(experts), zip(*weights, strict=True), strict=True)
            with self._coded.compact.unpacked(weights):
                for at, (part, ones) in enumerate(each):
                    matrix = side_by_side(ones)
                    if found is None:
                        self.native.pack_linear(matrix.to(self.dtype).contiguous(), part)
                    else:
                        scales = [one.of(at) for one in found]
                        self._pack_codes(matrix.contiguous(), scales, side_by_side, part)

        if found is None:
            size = experts * self.native.packed_size(*shape)
            return self.pack_always(size, self.dtype, fill), None
        size = experts * self.native.coded_size(*shape, found[0].how)
        return self.pack_always(size, torch.uint8, fill), found[0].how

    def pack_always(self, count: int, dtype: torch.dtype, fill: Callable[[Tensor], None]) -> Tensor:
        """As `Arena.pack`, by a function that always succeeds."""
        packed = self._arena.pack(count, dtype, fill)
        if packed is None:
            raise ValueError("the cache has no piece that an earlier loading always packs")
        return packed

    def dense(self, weight: Weight) -> Tensor:
        """A weight as a matrix in the program's type."""
        return floats(weight, self._coded.compact, self.dtype)

    def _common(self, found: Sequence[StoredRows | Scales]) -> Any:
        """The `_native.Quantization` to which all of these can be converted without loss."""
        bits, groups, with_zeros = zip(*(one.way for one in found), strict=True)
        return self.native.Quantization(max(bits), math.gcd(*groups), any(with_zeros))

    def _pack_codes(
        self, matrix: Tensor, found: Sequence[Scales], join: _Join, packed: Tensor
    ) -> None:
        scales = join([one.scales for one in found]).contiguous()
        given = [one.zeros for one in found if one.zeros is not None]
        zeros = join(given).contiguous() if given else None
        self.native.pack_coded(matrix, scales, zeros, found[0].how, packed)

    def _scales(self, weights: Sequence[Weight]) -> list[Scales] | None:
        """The scales of weights that are packed together, converted to one format; None if one of
        them has none.
        """
        found = [self._coded.of(one) for one in weights]
        scales = [one for one in found if one is not None]
        if len(scales) < len(weights):
            return None
        if len({one.way for one in scales}) == 1:
            return scales
        how = self._common(scales)
        return [one.widened(how, weights[0].shape[-1]) for one in scales]

    def give_up(self, operation: Operation) -> None:
        """See `Originals.give_up`."""
        self._originals.give_up(operation)
        if not self._arena.is_packed:
            self.native.trim_heap()


def _joined(shapes: Iterable[tuple[int, ...]], join: _Join) -> tuple[int, ...]:
    """The shape of matrices of some shapes that are joined to one."""
    return tuple(join([torch.empty(shape, device="meta") for shape in shapes]).shape)


def side_by_side(weights: Sequence[Tensor]) -> Tensor:
    """The weights of gate and up in the order of a gated product, or those of a plain one."""
    return weights[0] if len(weights) == 1 else take_turns(weights)


def below_each_other(weights: Sequence[Tensor]) -> Tensor:
    return weights[0] if len(weights) == 1 else torch.cat(list(weights))


def take_turns(weights: Sequence[Tensor]) -> Tensor:
    """Interleave the rows of several matrices of one shape, tile by tile, padded with zeros."""
    if len(weights[0]) % TILE:  # otherwise pad would copy them anyway
        weights = [nn.functional.pad(one, (0, 0, 0, -len(one) % TILE)) for one in weights]
    tiles = [one.reshape(-1, TILE, one.shape[1]) for one in weights]
    return torch.stack(tiles, dim=1).flatten(0, 2)


def _place(tensor: Tensor) -> _Place:
    """A matrix's address, shape and strides."""
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()
