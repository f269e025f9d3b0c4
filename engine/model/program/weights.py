"""Weights: the matrices of a product, or some rows of one."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


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
    """A weight as a matrix: a copy if it is made of some rows of another."""
    return weight.matrix[weight.index] if isinstance(weight, Rows) else weight
