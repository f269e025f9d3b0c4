"""Experts: a mixture of experts, chosen by the logits of a router."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from engine.model.program.gating import Gating
from engine.model.program.graph import Value, View
from engine.model.program.operations.kerneled import Weighted
from engine.model.program.routing import Routing


@dataclass(eq=False)
class Experts(Weighted):
    """A mixture of experts: the weighted sum of the results of each row's chosen experts.

    Attributes:
        logits: logits of the router, one column for each expert, in float32.
        weights: gate, up and down, or up and down: [experts, features, columns] each.
        biases: [experts, features], one for each weight, or none.
        activation: activation of up, without a gate.
        gating: how gate and up are combined; None without a gate.
    """

    parts: ClassVar[tuple[type, ...]] = (Gating, Routing)
    out: Value
    x: View
    logits: View
    routing: Routing
    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    activation: str
    gating: Gating | None
