"""Embed: rows of a table, looked up by token or position."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.model.program.graph import Value
from engine.model.program.operations.kerneled import Kerneled
from engine.model.program.weights import Weight


@dataclass(eq=False)
class Embed(Kerneled):
    """Looks up rows of a table.

    Attributes:
        table: [rows, width].
        positions: whether rows are looked up by position, not by token id.
    """

    out: Value
    table: Tensor
    positions: bool

    def matrices(self) -> tuple[Weight, ...]:
        """See `Operation.matrices`."""
        return (self.table,)
