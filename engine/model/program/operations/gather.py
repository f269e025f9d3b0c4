"""Gather: the rows that sample."""

from __future__ import annotations

from dataclasses import dataclass

from engine.model.program.graph import Value, View
from engine.model.program.operations.kerneled import Kerneled


@dataclass(eq=False)
class Gather(Kerneled):
    """Selects the rows that sample."""

    out: Value
    x: View
