"""Kerneled: an operation with a kernel of ours, and its computation by torch instead."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from engine.model.program.graph import Operation, Value, View
from engine.model.program.weights import Weight


class Kerneled(Operation):
    """An operation with a kernel of ours.

    Attributes:
        parts: the dataclasses, other than `View`, of which its fields may be.
    """

    parts: ClassVar[tuple[type, ...]] = ()


class Weighted(Kerneled):
    """An operation with weights that kernels read packed.

    Attributes:
        weights: the matrices, until they are packed.
        biases: one for each weight, or none.
    """

    weights: tuple[Weight, ...]
    biases: tuple[Tensor, ...]

    def matrices(self) -> tuple[Weight, ...]:
        """See `Operation.matrices`."""
        return self.weights

    def drop_weights(self) -> None:
        """See `Operation.drop_weights`."""
        self.weights = self.biases = ()


@dataclass(eq=False)
class ByTorch(Operation):
    """Computes an operation in torch, by its definition, because its kernel is wrong.

    Attributes:
        operation: the operation, with the model's own weights.
        reason: why its kernel is not used, as a clause.
    """

    in_torch: ClassVar[bool] = True
    out: Value = field(init=False)
    operation: Kerneled
    reason: str

    def __post_init__(self) -> None:
        self.out = self.operation.out

    @property
    def definition(self) -> Kerneled:
        """See `Operation.definition`."""
        return self.operation

    def reads(self) -> list[View]:
        """See `Operation.reads`."""
        return self.operation.reads()
