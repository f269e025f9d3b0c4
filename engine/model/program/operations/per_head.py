"""PerHead: the product of each head with the head's own matrix."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.model.program.graph import Value, View
from engine.model.program.operations.kerneled import Kerneled
from engine.model.program.weights import Weight


@dataclass(eq=False)
class PerHead(Kerneled):
    """The product of each head's first columns with the head's own matrix. A head's other columns
    are copied after the result.

    Attributes:
        weight: [heads, out columns, x columns].
    """

    out: Value
    x: View
    weight: Tensor

    @property
    def heads(self) -> int:
        return self.weight.shape[0]

    @property
    def stay(self) -> int:
        """Columns of each head that are copied."""
        return self.x.columns // self.heads - self.weight.shape[2]

    def matrices(self) -> tuple[Weight, ...]:
        """See `Operation.matrices`."""
        return (self.weight,)
