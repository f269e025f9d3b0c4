"""Coded: the parameters that are codes of a few bits: blocks of a file, or the values of codes,
with their scales. Coder finds the latter. Origins says which parameters were stored as codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from engine.model.files.compact import Compact, CompactWeights, block_types, packed_saving
from engine.model.program.weights import Rows, Weight, address_of, matrix_of
from engine.native import kernels


class Origins:
    """Records the first row of each weight that was unpacked from codes.

    transformers renames, merges and stacks weights when it reads them, but keeps rows unchanged: so
    a matrix that begins with such a row is made from codes, and one that was stored as floats is
    not mistaken for one.
    """

    def __init__(self) -> None:
        self._first_rows: set[bytes] = set()

    def __bool__(self) -> bool:
        return bool(self._first_rows)

    def add(self, weight: Tensor) -> None:
        """Record a weight [..., n, k], in the type of the model. Any thread may call this."""
        if weight.ndim in (2, 3):
            self._first_rows |= set(map(_bytes, _first_rows(weight)))

    def has(self, weight: Tensor) -> bool:
        """Whether all matrices of a weight [..., n, k] begin with such a row."""
        return all(_bytes(row) in self._first_rows for row in _first_rows(weight))


@dataclass(frozen=True, slots=True)
class Scales:
    """The scales of a weight.

    Attributes:
        how: `_native.Quantization`.
        scales: [..., n, groups] float16, of a weight [..., n, k].
        zeros: like scales; None if all are in the middle of the codes.
    """

    how: Any
    scales: Tensor
    zeros: Tensor | None

    @property
    def way(self) -> tuple[int, int, bool]:
        """Bits, group and zeros, which weights must share to be packed together."""
        return self.how.bits, self.how.group, self.how.has_zeros

    def rows(self, index: Tensor) -> Scales:
        """The scales of some of the n rows."""
        zeros = None if self.zeros is None else self.zeros[..., index, :]
        return Scales(self.how, self.scales[..., index, :], zeros)

    def of(self, matrix: int) -> Scales:
        """The scales of one of several matrices."""
        return Scales(
            self.how, self.scales[matrix], None if self.zeros is None else self.zeros[matrix]
        )

    def widened(self, how: Any, features: int) -> Scales:
        """Convert to as many bits or more, groups of a part of the size, and with or without zeros.

        Args:
            features: k.
        """
        groups = -(-features // how.group)

        def finer(one: Tensor) -> Tensor:
            return one.repeat_interleave(self.how.group // how.group, -1)[..., :groups]

        # The codes keep their distance from the middle.
        middle, shift = 1 << (self.how.bits - 1), (1 << (how.bits - 1)) - (1 << (self.how.bits - 1))
        zeros = self.zeros
        if how.has_zeros and zeros is None:
            zeros = torch.full_like(self.scales, middle)
        return Scales(how, finer(self.scales), None if zeros is None else finer(zeros + shift))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a parameter [..., N, k] is in memory, transposed so that the multiplied features come
    last.

    Attributes:
        begin: its offset in memory, in numbers.
        strides: strides of its dimensions.
    """

    begin: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, turned: Tensor) -> _Place:
        return cls(int(turned.storage_offset()), tuple(turned.shape), turned.stride())

    def rows_of(self, weight: Tensor) -> Tensor | None:
        """Which of its N rows a weight [..., n, k] consists of, [n]; None if it does not."""
        *batch, step, unit = weight.stride()
        *own_batch, own_step, own_unit = self.strides
        first, count = int(weight.storage_offset()) - self.begin, weight.shape[-2]
        fits = (
            weight.shape[-1:] == self.shape[-1:]
            and weight.shape[:-2] == self.shape[:-2]
            and (unit, batch) == (own_unit, own_batch)
            and first % own_step == step % own_step == 0
            and (first + (count - 1) * step) // own_step < self.shape[-2]
        )
        return first // own_step + torch.arange(count) * (step // own_step) if fits else None


@dataclass(frozen=True, slots=True)
class StoredRows:
    """A weight [..., n, k] that consists of rows of a file's blocks.

    Attributes:
        source: the parameter with the rows.
        how: `_native.Quantization` of the packed rows.
        rows: [..., n] int64, their indices among all rows of the source.
    """

    source: Compact
    how: Any
    rows: Tensor

    @property
    def way(self) -> tuple[int, int, bool]:
        """Bits, group and zeros, which weights must share to be packed together."""
        return self.how.bits, self.how.group, self.how.has_zeros


class Coded:
    """Records which parameters are blocks of a file, and which hold values of codes, rounded to
    their type. It does not keep the latter.

    Their codes are not stored, because a number and its scale determine the code: bfloat16 rounds
    127 scales by less than half of one.

    Args:
        compact: the parameters in stored form.
        itemsize: bytes of a number in the type of the computation.

    Attributes:
        saved_bytes: bytes by which the codes are smaller than the parameters.
    """

    def __init__(self, compact: CompactWeights | None = None, itemsize: int = 0) -> None:
        self.compact = CompactWeights() if compact is None else compact
        self._matrices: dict[int, tuple[_Place, Scales]] = {}
        native = kernels()
        self._types = {} if native is None else block_types(native)
        every = ((one.kind, tuple(one.window.shape)) for one in self.compact)
        self.saved_bytes = packed_saving(every, itemsize)

    def of(self, weight: Weight) -> Scales | None:
        """The scales of a weight that consists of rows of such a parameter; else None."""
        if isinstance(weight, Rows):
            found = self.of(weight.matrix)
            return None if found is None else found.rows(weight.index)
        place, scales = self._matrices.get(address_of(weight), (None, None))
        rows = None if place is None else place.rows_of(weight)
        return None if scales is None or rows is None else scales.rows(rows)

    def stored(self, weight: Weight) -> StoredRows | None:
        """The blocks of a weight; None if it does not consist of rows of blocks of codes."""
        matrix = matrix_of(weight)
        source = self.compact.of(matrix)
        if source is None or not source.kind:
            return None
        rows = _Place.of(source.window).rows_of(matrix)
        if rows is None:
            return None
        if isinstance(weight, Rows):
            rows = rows[weight.index]
        if matrix.ndim == 3:  # of the matrices one after the other
            rows = rows + torch.arange(len(matrix))[:, None] * source.window.shape[-2]
        return StoredRows(source, self._types[source.kind][2], rows)

    @property
    def has_codes(self) -> bool:
        """Whether any parameter is codes. A program drops those that it has packed."""
        return bool(self._matrices) or any(one.kind for one in self.compact)

    def has(self, parameter: Tensor) -> bool:
        """Whether it is known how a parameter is stored."""
        return address_of(parameter) in self._matrices or self.compact.of(parameter) is not None

    def is_codes(self, weight: Weight) -> bool:
        """Whether a kernel would multiply a weight as codes."""
        return self.of(weight) is not None or self.stored(weight) is not None

    def add(self, turned: Tensor, scales: Scales, coded_bytes: int) -> None:
        """Add a parameter [..., N, k]."""
        self.saved_bytes += turned.numel() * turned.itemsize - coded_bytes
        self._matrices[address_of(turned)] = _Place.of(turned), scales


# The formats that are tried for codes: bits, group, and whether there are zeros. AWQ and GPTQ
# mostly have groups of 128, which a product of one row reads in two thirds to nine tenths of the
# time for groups of 32. FP4 has 13 numbers, on a lattice of 25: of 5 bits in MXFP4's groups of 32,
# of 6 in NVFP4's of 16.
_WAYS = (
    *((4, 128, False), (4, 128, True), (4, 32, False), (4, 32, True), (5, 32, False)),
    *((6, 16, False), (8, 128, False), (8, 32, False), (8, 16, False)),
)


class Coder:
    """Determines codes for the parameters of a model.

    Args:
        native: the compiled kernels.
        coded: codes known already.

    Attributes:
        coded: all known codes.
    """

    def __init__(self, native: ModuleType, model: nn.Module, coded: Coded | None = None) -> None:
        self.coded = coded or Coded()
        self._native = native
        self._parameters = {address_of(one): one.detach() for one in model.parameters()}

    def quantize(self, weight: Weight, bits: int, group: int | None = None) -> None:
        """Quantize, in place, the whole parameter whose rows a weight consists of.

        Nothing changes if the weight belongs to no parameter, or if the parameter is already
        quantized.

        Args:
            group: how many features share a scale; None for the usual number with this many bits.
        """
        turned = self._turned(weight)
        if turned is None:
            return
        how = self._native.Quantization(bits, group or group_size(turned.shape[-1], bits))
        scales = _empty_scales(turned, how)
        for one, its_scales in zip(_matrices(turned), _matrices(scales), strict=True):
            numbers = one.contiguous()
            self._native.quantize(numbers, its_scales, how)
            one.copy_(numbers)
        self._add(turned, Scales(how, scales, None))

    def recognize(self, weight: Weight) -> bool:
        """Find the codes of the parameter whose rows a weight consists of, if it was unpacked from
        codes; returns whether they are known now.
        """
        turned = self._turned(weight)
        if turned is None:
            return self.coded.of(weight) is not None or self.coded.stored(weight) is not None
        ways = [self._native.Quantization(*way) for way in _WAYS]
        for how in sorted(ways, key=partial(self._native.coded_size, *turned.shape[-2:])):
            scales = _empty_scales(turned, how)
            zeros = torch.empty_like(scales) if how.has_zeros else None
            matrices = _matrices(turned)
            of_each = [None] * len(matrices) if zeros is None else _matrices(zeros)
            every = (
                self._native.recognize(one.contiguous(), its_scales, its_zeros, how)
                for one, its_scales, its_zeros in zip(
                    matrices, _matrices(scales), of_each, strict=True
                )
            )
            if all(every):
                self._add(turned, Scales(how, scales, zeros))
                return True
        return False

    def is_of(self, weight: Weight, origins: Origins) -> bool:
        """Whether a weight consists of rows of a parameter that was stored as codes which have not
        been found.
        """
        turned = self._turned(weight)
        return turned is not None and origins.has(turned)

    def _turned(self, weight: Weight) -> Tensor | None:
        """The parameter [..., N, k] of a weight, if it has one without codes."""
        matrix = matrix_of(weight)
        parameter = self._parameters.get(address_of(matrix))
        if parameter is None or self.coded.has(parameter) or parameter.ndim not in (2, 3):
            return None
        turned = parameter if matrix.stride(-1) == 1 else parameter.transpose(-1, -2)
        fits = turned.stride(-1) == matrix.stride(-1) and turned.shape[-1] == matrix.shape[-1]
        return turned if fits else None

    def _add(self, turned: Tensor, scales: Scales) -> None:
        sizes = (self._native.coded_size(*one.shape, scales.how) for one in _matrices(turned))
        self.coded.add(turned, scales, sum(sizes))


def _empty_scales(turned: Tensor, how: Any) -> Tensor:
    return torch.empty(*turned.shape[:-1], -(-turned.shape[-1] // how.group), dtype=torch.half)


def _matrices(turned: Tensor) -> Tensor:
    """[..., N, k] as a sequence of matrices."""
    return turned if turned.ndim == 3 else turned[None]


def group_size(features: int, bits: int) -> int:
    """How many features share a scale: 32 of 4 bits, and up to 128 of 8, so that the last group
    needs no more padding than necessary.
    """
    if bits == 4:
        return 32
    tiles = -(-features // 32)
    return 32 * next(size for size in (4, 3, 2, 1) if tiles % size == 0)


def _first_rows(weight: Tensor) -> Tensor:
    return weight[..., 0, :].reshape(-1, weight.shape[-1])


def _bytes(row: Tensor) -> bytes:
    # numpy does not support bfloat16.
    return row.detach().float().contiguous().numpy().tobytes()
