"""Products: a program's matrix products, each by cuBLAS or, for few rows, by a kernel of ours."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.gpu.cublas import OfRows
from engine.model.program.graph import Graph
from engine.model.program.operations.linear import Gated, Linear
from engine.model.program.operations.norm import Norm
from engine.model.program.weights import Rows
from engine.triton.product import MOST_ROWS, Normed, Strip, product

# A strip is chosen for each of these numbers of rows, and is also used for fewer rows, down to the
# previous number. They are sizes of captured steps (`engine.model.gpu.ladder`).
RUNGS = (1, 2, 4, 8, MOST_ROWS)

# In float16 a row times its norm's weights may be too large before it is divided by its length.
_FOLDED = (torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True)
class ProductShape:
    """The properties on which the time of a product depends.

    Attributes:
        columns, width: of the result, and of the input.
        has_norm: whether a norm precedes it that the kernel can compute too.
    """

    columns: int
    width: int
    has_norm: bool
    has_bias: bool
    has_residual: bool
    is_gated: bool
    activation: str

    def __str__(self) -> str:
        parts = [
            "norm, " if self.has_norm else "",
            f"{self.columns}{' x 2' if self.is_gated else ''} x {self.width}",
            ", bias" if self.has_bias else "",
            f", {self.activation}" if self.activation != "none" else "",
            ", residual" if self.has_residual else "",
        ]
        return "".join(parts)


class Choice:
    """The strip for the products of one shape, for each number of rows; None, at first, stands for
    cuBLAS.
    """

    def __init__(self) -> None:
        self._strips: list[Strip | None] = [None] * (MOST_ROWS + 1)

    def of(self, rows: int) -> Strip | None:
        """The strip for a step of this many rows; None is cuBLAS."""
        return self._strips[rows] if rows <= MOST_ROWS else None

    def take(self, rows: int, strip: Strip | None) -> None:
        """Choose for steps of this many rows and less, down to the next of RUNGS."""
        least = max((rung for rung in RUNGS if rung < rows), default=0)
        self._strips[least + 1 : rows + 1] = [strip] * (rows - least)


@dataclass(frozen=True, slots=True)
class Operands:
    """The operands of the kernel for few rows, as in `engine.triton.product.product`.

    Attributes:
        out, x, residual: matrices with as many rows as a step has at most.
    """

    out: Tensor
    x: Tensor
    weight: Tensor
    norm: Normed | None
    bias: Tensor | None
    residual: Tensor | None
    alpha: float


class Product:
    """One product, with the operations before and after it.

    Args:
        norm: launches the norm before it, if its shape has one. The norm also has an instruction of
            its own in the program, which does nothing where the product's kernel computes the norm.
        launches: the launches of cuBLAS and of the kernels beside it, in order.

    Attributes:
        choice: shared by all products of its shape.
    """

    def __init__(
        self,
        shape: ProductShape,
        choice: Choice,
        norm: OfRows | None,
        launches: tuple[OfRows, ...],
        operands: Operands,
    ) -> None:
        self.shape = shape
        self.operands = operands
        self.choice = choice
        self.launches = launches
        self._norm = norm

    def __call__(self, rows: int) -> None:
        """Compute it in the way chosen for this many rows."""
        strip = self.choice.of(rows)
        if strip is None:
            for launch in self.launches:
                launch(rows)
        else:
            self.by_strip(rows, strip)

    def by_cublas(self, rows: int) -> None:
        """Compute it by cuBLAS, with its norm."""
        if self._norm is not None:
            self._norm(rows)
        for launch in self.launches:
            launch(rows)

    def by_strip(self, rows: int, strip: Strip) -> None:
        """Compute it by the kernel for few rows, with its norm."""
        given = self.operands
        product(
            given.out[:rows],
            given.x[:rows],
            given.weight,
            strip,
            norm=given.norm,
            bias=given.bias,
            activation=self.shape.activation,
            is_gated=self.shape.is_gated,
            residual=None if given.residual is None else given.residual[:rows],
            alpha=given.alpha,
        )


def foldable_norms(graph: Graph, dtype: torch.dtype) -> dict[int, Norm]:
    """The RMSNorms of whole rows whose only reader is the product that follows them, by the `id` of
    that product's operation.
    """
    readers = Counter(id(view.value) for one in graph.operations for view in one.reads())
    found: dict[int, Norm] = {}
    if dtype not in _FOLDED:
        return found
    for norm, reader in zip(graph.operations, graph.operations[1:], strict=False):
        if (
            isinstance(norm, Norm)
            and isinstance(reader, Linear | Gated)
            and (norm.groups, norm.center, norm.bias) == (1, False, None)
            and reader.x.value is norm.out
            and reader.x.is_whole
            and readers[id(norm.out)] == 1
        ):
            found[id(reader)] = norm
    return found


def shape_of(operation: Linear | Gated, norm: Norm | None) -> ProductShape:
    """The shape of a product.

    Args:
        norm: the one before it that the kernel can compute too.
    """
    return ProductShape(
        columns=operation.out.width,
        width=operation.x.columns,
        has_norm=norm is not None,
        has_bias=bool(operation.biases),
        has_residual=isinstance(operation, Linear) and operation.residual is not None,
        is_gated=isinstance(operation, Gated),
        activation=operation.activation,
    )


def is_readable(operation: Linear | Gated) -> bool:
    """Whether each row of its matrix is contiguous, as the kernel for few rows needs. Matrices that
    are joined, or made of some rows of another, become so.
    """
    first, *others = operation.weights
    return bool(others) or isinstance(first, Rows) or first.is_contiguous()
