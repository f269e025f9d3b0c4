"""Elementwise: an activation, a sum or a product. Beside: two matrices side by side."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.model.program.graph import Value, View
from engine.model.program.operations.kerneled import Kerneled


@dataclass(eq=False)
class Elementwise(Kerneled):
    """activation(alpha * x); x + alpha * y; or alpha * activation(x) * y, depending on `combine`.

    Attributes:
        combine: `none`, `add` or `multiply`.
        y: another matrix, or one row for all rows; None if `combine` is `none`. If it has fewer
            columns than x, each is used for several adjacent ones of x.
    """

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


@dataclass(eq=False)
class Beside(Kerneled):
    """The columns of x, followed by those of y."""

    out: Value
    x: View
    y: View
