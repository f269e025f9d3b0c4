"""Linear and Gated: products with matrices of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.program.graph import Value, View
from engine.model.program.operations.kerneled import Weighted
from engine.model.program.provenance import Provenance
from engine.model.program.unreadable import UnreadableError
from engine.model.program.weights import Rows, Weight


@dataclass(eq=False)
class Linear(Weighted):
    """activation(x weights^T + biases), or residual + alpha * (x weights^T + biases).

    Attributes:
        weights: matrices of [columns, x columns], stacked vertically.
        biases: one for each weight, [columns], or none.
    """

    out: Value
    x: View
    weights: tuple[Weight, ...]
    biases: tuple[Tensor, ...]
    activation: str = "none"
    residual: View | None = None
    alpha: float = 1.0

    def picked(self, columns: Tensor) -> Linear:
        """See `Operation.picked`."""
        (weight,) = self.weights
        reference = self.out.reference[:, columns].contiguous()
        return Linear(
            Value(reference, self.out.per_sample),
            self.x,
            (weight[columns] if isinstance(weight, Rows) else Rows(weight, columns),),
            tuple(bias[columns] for bias in self.biases),
        )


@dataclass(eq=False)
class Gated(Weighted):
    """activation(x gate^T + gate_bias) * (x up^T + up_bias): GLU, arXiv 2002.05202.

    Attributes:
        weights: gate and up, [out columns, x columns] each.
        biases: one for each weight, or none.
    """

    out: Value
    x: View
    weights: tuple[Weight, ...]
    biases: tuple[Tensor, ...]
    activation: str


def rows_of(product: Linear, view: View) -> tuple[Weight, tuple[Tensor, ...]]:
    """Weight and bias of some columns of a product with one weight."""
    rows = slice(view.column, view.column + view.columns)
    (weight,) = product.weights
    return weight[rows], tuple(bias[rows] for bias in product.biases)


def join(tensors: Sequence[Tensor], provenance: Provenance, out: Value) -> Linear:
    """Columns of products of one matrix, side by side: the product of their weights.

    Raises:
        UnreadableError: they are something else.
    """
    views = [provenance.origin(provenance.view(one)) for one in tensors]
    products = [one for one in map(provenance.maker, views) if isinstance(one, Linear)]
    beside = torch.cat([view.reference for view in views], dim=1)
    if len(products) < len(views) or not torch.equal(beside, out.reference):
        raise UnreadableError("it joins tensors that are not products")
    first, *others = products
    if any(one.x != first.x or len(one.biases) != len(first.biases) for one in others):
        raise UnreadableError("it joins products of several matrices")
    parts = [rows_of(one, view) for one, view in zip(products, views, strict=True)]
    biases = [one for _, given in parts for one in given]
    return Linear(out, first.x, tuple(one for one, _ in parts), tuple(biases))
