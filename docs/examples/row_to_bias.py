"""A fusion of one's own: a row that is added to a product is its bias."""

from __future__ import annotations

from collections import Counter

from torch import Tensor

from engine.model.program.graph import Operation, Value
from engine.model.program.operations.elementwise import Elementwise
from engine.model.program.operations.linear import Linear


def row_to_bias(operations: list[Operation], logits: Value) -> list[Operation]:
    """x weights^T, then + alpha * row: the kernel of the product adds it on the way out."""
    makers = {id(one.out): one for one in operations}
    readers = Counter(id(view.value) for one in operations for view in one.reads())
    readers[id(logits)] += 1
    gone: set[int] = set()
    for one in operations:
        if not (
            isinstance(one, Elementwise) and one.combine == "add" and isinstance(one.y, Tensor)
        ):
            continue
        product = makers.get(id(one.x.value))
        if (
            isinstance(product, Linear)
            and one.x.is_whole
            and readers[id(product.out)] == 1
            and len(product.weights) == 1
            and not product.biases
            and product.activation == "none"
            and product.residual is None
        ):
            product.biases, product.out = (one.alpha * one.y,), one.out
            gone.add(id(one))
    return [one for one in operations if id(one) not in gone]
