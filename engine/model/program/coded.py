"""Coded: which of a model's parameters hold what codes of a few bits mean, and by which scales."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from engine.model.program.weights import Rows, Weight


@dataclass(frozen=True, slots=True)
class Scales:
    """The scales of a weight.

    Attributes:
        how: `_native.Quantization`.
        scales: [..., n, groups] float16, of a weight [..., n, k].
    """

    how: Any
    scales: Tensor


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A parameter [..., N, k], turned so that the features that are multiplied come last.

    Attributes:
        begin: where it begins in its memory, in numbers.
        strides: of its dimensions.
    """

    begin: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    scales: Scales

    def rows_of(self, weight: Tensor) -> Tensor | None:
        """Which of its N rows a weight [..., n, k] consists of, [n]; None if it is no such rows."""
        *batch, step, unit = weight.stride()
        *own_batch, own_step, own_unit = self.strides
        first = int(weight.storage_offset()) - self.begin
        offsets = first + torch.arange(weight.shape[-2]) * step
        fits = (
            weight.shape[-1:] == self.shape[-1:]
            and weight.shape[:-2] == self.shape[:-2]
            and (unit, batch) == (own_unit, own_batch)
            and not bool((offsets % own_step).any())
        )
        rows = offsets // own_step
        return rows if fits and int(rows.max()) < self.shape[-2] else None


class Coded:
    """Knows the parameters that were quantized. It holds none of them.

    They hold what their codes mean, rounded to their type. Codes are not kept, because a number and
    its scale give the code back: it is off by a quarter of one at most, for bfloat16 has 8 bits and
    codes go up to 127.

    Attributes:
        saved_bytes: how much smaller the codes are than the parameters.
    """

    def __init__(self, native: ModuleType, model: nn.Module) -> None:
        self._native = native
        self._parameters = {
            parameter.untyped_storage().data_ptr(): parameter.detach()
            for parameter in model.parameters()
        }
        self._matrices: dict[int, _Matrix] = {}
        self.saved_bytes = 0

    def quantize(self, weight: Weight, bits: int) -> None:
        """Quantize, in place, the whole parameter that a weight consists of rows of.

        If it is not a parameter's, or the parameter has been quantized before, nothing changes.
        """
        matrix = weight.matrix if isinstance(weight, Rows) else weight
        address = matrix.untyped_storage().data_ptr()
        parameter = self._parameters.get(address)
        if parameter is None or address in self._matrices or parameter.ndim not in (2, 3):
            return
        turned = parameter if matrix.stride(-1) == 1 else parameter.transpose(-1, -2)
        if turned.stride(-1) != matrix.stride(-1) or turned.shape[-1] != matrix.shape[-1]:
            return
        how = self._native.Quantization(bits, group_size(turned.shape[-1], bits))
        groups = -(-turned.shape[-1] // how.group)
        scales = torch.empty(*turned.shape[:-1], groups, dtype=torch.float16)
        whole = (turned, scales) if turned.ndim == 3 else (turned[None], scales[None])
        for one, its_scales in zip(*whole, strict=True):
            numbers = one.contiguous()
            self._native.quantize(numbers, its_scales, how)
            one.copy_(numbers)
            self.saved_bytes += numbers.nbytes - self._native.coded_size(*one.shape, how)
        self._matrices[address] = _Matrix(
            int(turned.storage_offset()), tuple(turned.shape), turned.stride(), Scales(how, scales)
        )

    def of(self, weight: Weight) -> Scales | None:
        """The scales of a weight; None if it was not quantized."""
        if isinstance(weight, Rows):
            found = self.of(weight.matrix)
            return None if found is None else Scales(found.how, found.scales[weight.index])
        matrix = self._matrices.get(weight.untyped_storage().data_ptr())
        rows = None if matrix is None else matrix.rows_of(weight)
        if matrix is None or rows is None:
            return None
        return Scales(matrix.scales.how, matrix.scales.scales[..., rows, :])


def group_size(features: int, bits: int) -> int:
    """How many features share a scale: 32 of 4 bits, and of 8 up to 128, so that the last group is
    not filled up with more zeros than it must.
    """
    if bits == 4:
        return 32
    tiles = -(-features // 32)
    return 32 * next(size for size in (4, 3, 2, 1) if tiles % size == 0)
