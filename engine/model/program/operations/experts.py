"""Experts: a mixture of experts, chosen by the logits of a router."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from engine.model.program.activations import ACTIVATIONS
from engine.model.program.gating import Gating
from engine.model.program.graph import Value, View
from engine.model.program.operations.kerneled import Emitter, Numbers, Weighted, wide
from engine.model.program.pack import Packer, Product, side_by_side
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
    may_sample: ClassVar[bool] = True
    out: Value
    x: View
    logits: View
    routing: Routing
    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    activation: str
    gating: Gating | None

    def in_float32(self, out: bool) -> list[View]:
        """See `Operation.in_float32`. Rounded logits would choose other experts."""
        return [self.logits]

    def pack(self, packer: Packer) -> tuple[Product, ...]:
        """Pack the products up and down of all experts in sequence; up as of `Gated`, if there is
        a gate.
        """
        *ups, down = self.weights
        _, width, inner = down.shape
        packed = [packer.pack_each(ones) for ones in (ups, [down])]
        biases: list[Tensor | None] = [None, None]
        if self.biases:
            *firsts, last = (bias.float() for bias in self.biases)
            columns = (tuple(one[:, None] for one in ones) for ones in zip(*firsts, strict=True))
            biases = [torch.cat([side_by_side(one).flatten() for one in columns]), last.flatten()]
        packer.give_up(self)
        (up, up_how), (low, low_how) = packed
        return Product(up, biases[0], up_how, 0, inner), Product(low, biases[1], low_how, 0, width)

    def emit(self, to: Emitter, *products: Product) -> None:
        """See `Kerneled.emit`."""
        (up, down), routing, gating = products, self.routing, self.gating
        experts = to.native.Experts(
            experts=self.logits.columns,
            chosen=routing.chosen,
            score=routing.score,
            correction=routing.correction,
            groups=routing.groups,
            kept_groups=routing.kept,
            group_best=routing.best,
            normalised=routing.normalised,
            scale=routing.scale,
            factors=routing.factors,
            width=down.columns,
            inner=up.columns,
            up=up.weight,
            up_bias=up.bias,
            gated=gating is not None,
            activation=self.activation,
            limit=math.inf if gating is None else gating.limit,
            shift=0.0 if gating is None else gating.shift,
            down=down.weight,
            down_bias=down.bias,
            up_quantization=up.how,
            down_quantization=down.how,
        )
        to.program.experts(to.place_of(self.out), to.place(self.x), to.place(self.logits), experts)

    def compute(self, of: Numbers) -> Tensor:
        """See `Kerneled.compute`."""
        x = of(self.x)
        index, weight = self.routing.choose(of(self.logits))
        total = torch.zeros_like(wide(x))
        for expert in sorted(set(index.flatten().tolist())):
            rows, places = (index == expert).nonzero(as_tuple=True)
            given = wide(self.compute_expert(x[rows], expert))
            total.index_add_(0, rows, (weight[rows, places, None] * given).to(total.dtype))
        return total

    def compute_expert(self, x: Tensor, expert: int) -> Tensor:
        """Compute one expert on rows [rows, columns], or on one row, in their type."""

        def product(x: Tensor, at: int) -> Tensor:
            bias = self.biases[at][expert].to(x.dtype) if self.biases else None
            return F.linear(x, self.weights[at][expert].to(x.dtype), bias)

        if self.gating is None:
            return product(ACTIVATIONS[self.activation](product(x, 0)), 1)
        return product(self.gating(product(x, 0), product(x, 1)), 2)
