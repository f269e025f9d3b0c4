"""Linear and Gated: products with matrices of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from engine.model.program.activations import ACTIVATIONS
from engine.model.program.agree import agree
from engine.model.program.capture import Call
from engine.model.program.graph import Operation, Value, View
from engine.model.program.operations.kerneled import Emitter, Numbers, Weighted, part, wide
from engine.model.program.pack import TILE, Packer, Product, below_each_other, take_turns
from engine.model.program.provenance import Provenance
from engine.model.program.reading import Reading, weight_and_bias
from engine.model.program.unreadable import UnreadableError
from engine.model.program.weights import Rows, Weight, dense

_JOIN = frozenset(("cat", "concat", "concatenate"))


@dataclass(eq=False)
class Linear(Weighted):
    """activation(x weights^T + biases), or residual + alpha * (x weights^T + biases).

    Attributes:
        weights: matrices of [columns, x columns], stacked vertically.
        biases: one for each weight, [columns], or none.
    """

    may_sample: ClassVar[bool] = True
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

    @property
    def overwritten(self) -> View | None:
        """See `Operation.overwritten`."""
        return self.residual

    def reads_past(self, multiple: int) -> list[View]:
        """See `Operation.reads_past`."""
        return _reads_past(self, multiple)

    def pack(self, packer: Packer) -> tuple[Product, ...]:
        """Pack its weights. There are several products if blocks of weights have different types:
        none is widened to another's bits.
        """
        parts, column = [], 0
        biases = self.biases or (None,) * len(self.weights)
        every = zip(self.weights, biases, strict=True)
        for _, group in groupby(every, lambda one: packer.way(one[0])):
            weights, its_biases = zip(*group, strict=True)
            weight, how = packer.pack(weights, below_each_other)
            bias = torch.cat([one.float() for one in its_biases]) if self.biases else None
            columns = sum(one.shape[0] for one in weights)
            parts.append(Product(weight, bias, how, column, columns))
            column += columns
        if len(self.weights) == 1 and not isinstance(self.weights[0], Rows):
            packer.remember(self.weights[0], parts[0])
        packer.give_up(self)
        return tuple(parts)

    def emit(self, to: Emitter, *products: Product) -> None:
        """See `Kerneled.emit`."""
        out = to.place_of(self.out)
        for product in products:
            to.program.linear(
                out=part(out, product),
                x=to.place(self.x),
                weight=product.weight,
                n=product.columns,
                k=self.x.columns,
                bias=product.bias,
                activation=self.activation,
                residual=self.residual and part(to.place(self.residual), product),
                alpha=self.alpha,
                quantization=product.how,
            )

    def compute(self, of: Numbers) -> Tensor:
        """See `Kerneled.compute`."""
        product = ACTIVATIONS[self.activation](torch.cat(_products(self, of(self.x)), 1))
        if self.residual is None:
            return product
        return wide(of(self.residual)) + self.alpha * product


@dataclass(eq=False)
class Gated(Weighted):
    """activation(x gate^T + gate_bias) * (x up^T + up_bias): GLU, arXiv 2002.05202.

    Attributes:
        weights: gate and up, [out columns, x columns] each.
        biases: one for each weight, or none.
    """

    may_sample: ClassVar[bool] = True
    out: Value
    x: View
    weights: tuple[Weight, ...]
    biases: tuple[Tensor, ...]
    activation: str

    def reads_past(self, multiple: int) -> list[View]:
        """See `Operation.reads_past`."""
        return _reads_past(self, multiple)

    def pack(self, packer: Packer) -> tuple[Product, ...]:
        """Pack its weights as one: 16 gates, their 16 ups, the next 16 gates, and so on."""
        weight, how = packer.pack(self.weights, take_turns)
        biases = [bias.float()[:, None] for bias in self.biases]
        bias = take_turns(biases).flatten() if biases else None
        packer.give_up(self)
        return (Product(weight, bias, how, 0, self.out.width),)

    def emit(self, to: Emitter, *products: Product) -> None:
        """See `Kerneled.emit`."""
        (product,) = products
        columns = -(-self.out.width // TILE) * 2 * TILE
        to.program.linear(
            out=(to.place_of(self.out)[0], 0, columns // 2),
            x=to.place(self.x),
            weight=product.weight,
            n=columns,
            k=self.x.columns,
            bias=product.bias,
            gated=True,
            activation=self.activation,
            quantization=product.how,
        )

    def compute(self, of: Numbers) -> Tensor:
        """See `Kerneled.compute`."""
        gate, up = _products(self, of(self.x))
        return ACTIVATIONS[self.activation](gate) * up


def rows_of(product: Linear, view: View) -> tuple[Weight, tuple[Tensor, ...]]:
    """Weight and bias of some columns of a product with one weight."""
    rows = slice(view.column, view.column + view.columns)
    (weight,) = product.weights
    return weight[rows], tuple(bias[rows] for bias in product.biases)


def read_linear(reading: Reading, call: Call, output: Tensor, out: Value) -> list[Operation] | None:
    """A module's product, or products of one matrix that are joined."""
    if call.function in _JOIN:
        return [_join(call.args[0], reading.provenance, out)]
    module, views = reading.module_on(call)
    if module is None or len(views) != 1:
        return None
    found = _product_of(module, views[0], out)
    return None if found is None else [found]


def _product_of(module: nn.Module, x: View, out: Value) -> Linear | None:
    """The product of x with a module's weight that reproduces the recorded numbers."""
    weight, bias = weight_and_bias(module) or (None, None)
    # A router may be in float32; a program has one type.
    if weight is None or weight.ndim != 2 or weight.dtype != x.reference.dtype:
        return None
    for matrix in (weight, weight.T):
        # It is computed in the model's own type, because a copy of an output head in a wider one
        # takes gigabytes.
        if matrix.shape == (out.width, x.columns) and agree(
            F.linear(x.reference, matrix, bias).double(), out.reference
        ):
            return Linear(out, x, (matrix,), () if bias is None else (bias,))
    return None


def _join(tensors: Sequence[Tensor], provenance: Provenance, out: Value) -> Linear:
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


def _reads_past(operation: Linear | Gated, multiple: int) -> list[View]:
    # A product of a value's last columns also reads a whole multiple of them.
    x = operation.x
    return [x] if x.columns % multiple and x.column else []


def _products(operation: Linear | Gated, x: Tensor) -> list[Tensor]:
    """Products of x with each weight: [rows, features] each, at least in float32."""
    biases = operation.biases or (None,) * len(operation.weights)
    return [
        wide(F.linear(x, dense(weight).to(x.dtype), None if bias is None else bias.to(x.dtype)))
        for weight, bias in zip(operation.weights, biases, strict=True)
    ]
