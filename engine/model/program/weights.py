"""Weights: the matrices of a product, or some rows of one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.files.compact import CompactWeights


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a matrix, in any order.

    Attributes:
        matrix: [n, columns].
        index: [rows] int64.
    """

    matrix: Tensor
    index: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.index), self.matrix.shape[1]

    def __getitem__(self, rows: slice | Tensor) -> Rows:
        return Rows(self.matrix, self.index[rows])


# Of a product, [columns, x columns].
Weight = Tensor | Rows


def dense(weight: Weight) -> Tensor:
    """A weight as a matrix: a copy if it consists of some rows of another."""
    return weight.matrix[weight.index] if isinstance(weight, Rows) else weight


def matrix_of(weight: Weight) -> Tensor:
    """The matrix of a weight, or the one whose rows it consists of."""
    return weight.matrix if isinstance(weight, Rows) else weight


def address_of(weight: Weight) -> int:
    """Address of the memory of a weight's matrix."""
    return matrix_of(weight).untyped_storage().data_ptr()


def floats(weight: Weight, compact: CompactWeights, dtype: torch.dtype) -> Tensor:
    """A weight as a matrix of a given type. It is a copy if the weight is compact."""
    matrix = matrix_of(weight)
    with compact.unpacked([matrix]):
        return dense(weight).to(dtype, copy=compact.of(matrix) is not None)
