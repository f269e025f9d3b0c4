"""Graph: what a forward pass computes, as matrices and the operations between them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from engine.model.attention.params import AttentionParams


@dataclass(eq=False, slots=True)
class Value:
    """A matrix with a row for each token, or for each row that samples.

    Attributes:
        reference: [rows, width], what the recorded pass computed.
        per_sample: whether it has a row for each row that samples, not for each token.
    """

    reference: Tensor
    per_sample: bool

    @property
    def width(self) -> int:
        return self.reference.shape[1]


@dataclass(frozen=True, slots=True)
class View:
    """Columns [column, column + columns) of a value."""

    value: Value
    column: int
    columns: int

    @property
    def is_whole(self) -> bool:
        return self.columns == self.value.width

    @property
    def reference(self) -> Tensor:
        return self.value.reference[:, self.column : self.column + self.columns]


@dataclass(eq=False, slots=True)
class Embed:
    """Looks up rows of a table.

    Attributes:
        table: [rows, width].
        positions: whether rows are looked up by position, not by token id.
    """

    out: Value
    table: Tensor
    positions: bool


@dataclass(eq=False, slots=True)
class Norm:
    """RMSNorm, or LayerNorm if `center`, over each of `groups` parts of a row.

    Attributes:
        weight, bias: [columns / groups] float32.
    """

    out: Value
    x: View
    groups: int
    weight: Tensor | None
    bias: Tensor | None
    eps: float
    center: bool


@dataclass(eq=False, slots=True)
class Linear:
    """activation(x weights^T + biases), or residual + alpha * (x weights^T + biases).

    Attributes:
        weights: matrices of [columns, x columns], to be put one below the other.
        biases: one for each of them, [columns], or none.
    """

    out: Value
    x: View
    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    activation: str = "none"
    residual: View | None = None
    alpha: float = 1.0


@dataclass(eq=False, slots=True)
class Gated:
    """activation(x gate^T + gate_bias) * (x up^T + up_bias): GLU, arXiv 2002.05202.

    Attributes:
        weights: gate and up, [out columns, x columns] each.
        biases: one for each of them, or none.
    """

    out: Value
    x: View
    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    activation: str


@dataclass(eq=False, slots=True)
class Elementwise:
    """activation(alpha * x); x + alpha * y; or alpha * activation(x) * y, as `combine` says.

    Attributes:
        combine: `none`, `add` or `multiply`.
        y: another matrix, or one row that serves for all rows; None if `combine` is `none`.
    """

    out: Value
    x: View
    combine: str = "none"
    y: View | Tensor | None = None
    activation: str = "none"
    alpha: float = 1.0


@dataclass(frozen=True, slots=True)
class Rotation:
    """RoPE by tables.

    Attributes:
        cos, sin: [positions, half] float32.
        interleaved: whether columns (2 i, 2 i + 1) make a pair, and not (i, i + half).
    """

    cos: Tensor
    sin: Tensor
    interleaved: bool


@dataclass(eq=False, slots=True)
class Attend:
    """Rotate queries and keys, store keys and values, attend.

    Attributes:
        rotated: [tokens, columns] each, what the recorded pass had for query and key after the
            rotation.
        params: of the layer; sinks are in float32.
    """

    out: Value
    layer: int
    query: View
    key: View
    value: View
    heads: int
    kv_heads: int
    query_rotation: Rotation | None
    key_rotation: Rotation | None
    rotated: tuple[Tensor, Tensor]
    params: AttentionParams


@dataclass(eq=False, slots=True)
class Gather:
    """Takes the rows that sample."""

    out: Value
    x: View


@dataclass(eq=False, slots=True)
class Opaque:
    """Runs a module as it is, on [1, rows, columns]."""

    out: Value
    x: View
    module: nn.Module


Operation = Embed | Norm | Linear | Gated | Elementwise | Attend | Gather | Opaque


@dataclass(frozen=True, slots=True)
class Graph:
    """Operations in order; the last one gives the logits."""

    operations: list[Operation]
    logits: Value


def reads(operation: Operation) -> list[View]:
    """The views that an operation reads."""
    match operation:
        case Embed():
            return []
        case Attend(query=query, key=key, value=value):
            return [query, key, value]
        case Linear(x=x, residual=residual):
            return [x] if residual is None else [x, residual]
        case Elementwise(x=x, y=View() as y):
            return [x, y]
        case _:
            return [operation.x]
