"""Recur: linear attention, whose state decays from token to token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from engine.model.program.graph import Value, View
from engine.model.program.linear_attention import Recurrence
from engine.model.program.operations.kerneled import Kerneled


@dataclass(eq=False)
class Recur(Kerneled):
    """Linear attention with a state for each head that decays from token to token.

    Attributes:
        query, key: key_heads * key_dim columns.
        value: heads * value_dim columns.
        decay, beta: a column for each head.
    """

    parts: ClassVar[tuple[type, ...]] = (Recurrence,)
    out: Value
    query: View
    key: View
    value: View
    decay: View
    beta: View | None
    way: Recurrence
