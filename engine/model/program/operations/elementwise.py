"""Elementwise: an activation, a sum or a product. Beside: two matrices side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from engine.model.program.activations import ACTIVATIONS
from engine.model.program.graph import Value, View
from engine.model.program.operations.kerneled import Emitter, Kerneled, Numbers, wide
from engine.model.program.pack import Product


@dataclass(eq=False)
class Elementwise(Kerneled):
    """activation(alpha * x); x + alpha * y; or alpha * activation(x) * y, depending on `combine`.

    Attributes:
        combine: `none`, `add` or `multiply`.
        y: another matrix, or one row for all rows; None if `combine` is `none`. If it has fewer
            columns than x, each is used for several adjacent ones of x.
    """

    may_sample: ClassVar[bool] = True
    out: Value
    x: View
    combine: str = "none"
    y: View | Tensor | None = None
    activation: str = "none"
    alpha: float = 1.0

    @property
    def copied(self) -> View | None:
        """See `Operation.copied`."""
        is_copy = (self.combine, self.activation, self.alpha) == ("none", "none", 1.0)
        return self.x if is_copy else None

    @property
    def alike(self) -> View | None:
        """y, if it is a matrix with as many columns as x, so that both can be exchanged."""
        y = self.y
        return y if isinstance(y, View) and y.columns == self.x.columns else None

    def in_float32(self, out: bool) -> list[View]:
        """See `Operation.in_float32`."""
        return self.reads() if out else []

    def emit(self, to: Emitter, *products: Product) -> None:
        """See `Kerneled.emit`."""
        y = self.y
        to.program.elementwise(
            out=to.place_of(self.out),
            x=to.place(self.x),
            combine=self.combine,
            y=y.to(to.dtype) if isinstance(y, Tensor) else y and to.place(y),
            activation=self.activation,
            alpha=self.alpha,
        )

    def compute(self, of: Numbers) -> Tensor:
        """See `Kerneled.compute`."""
        function, x, y = ACTIVATIONS[self.activation], wide(of(self.x)), self.y
        if self.combine == "none" or y is None:
            return function(self.alpha * x)
        other = wide(of(y) if isinstance(y, View) else y)
        other = other.repeat_interleave(x.shape[1] // other.shape[-1], dim=-1)
        if self.combine == "add":
            return x + self.alpha * other
        return self.alpha * function(x) * other


@dataclass(eq=False)
class Beside(Kerneled):
    """The columns of x, followed by those of y."""

    out: Value
    x: View
    y: View

    def emit(self, to: Emitter, *products: Product) -> None:
        """See `Kerneled.emit`."""
        buffer, column, _ = to.place_of(self.out)
        for view in (self.x, self.y):
            to.program.elementwise(out=(buffer, column, view.columns), x=to.place(view))
            column += view.columns

    def compute(self, of: Numbers) -> Tensor:
        """See `Kerneled.compute`."""
        return torch.cat((of(self.x), of(self.y)), dim=1)
