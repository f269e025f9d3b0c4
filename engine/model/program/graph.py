"""Graph: a forward pass as matrices and the operations between them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.model.attention.params import AttentionParams
from engine.model.program.gating import Gating
from engine.model.program.linear_attention import Recurrence
from engine.model.program.replay import Replay
from engine.model.program.routing import Routing
from engine.model.program.weights import Weight


@dataclass(eq=False, slots=True)
class Value:
    """A matrix with a row for each token, or for each row that samples.

    Attributes:
        reference: [rows, width], from the recorded pass.
        per_sample: whether its rows are those that sample, not all tokens.
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


@dataclass(eq=False, slots=True)
class Gated:
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


@dataclass(eq=False, slots=True)
class Elementwise:
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
    def is_copy(self) -> bool:
        return (self.combine, self.activation, self.alpha) == ("none", "none", 1.0)

    @property
    def alike(self) -> View | None:
        """y, if it is a matrix with as many columns as x, so that both can be exchanged."""
        y = self.y
        return y if isinstance(y, View) and y.columns == self.x.columns else None


@dataclass(frozen=True, slots=True)
class Rotation:
    """RoPE by tables.

    Attributes:
        cos, sin: [positions, half] float32.
        interleaved: whether columns (2 i, 2 i + 1) make a pair, rather than (i, i + half).
        begin: the first rotated column of a head.
    """

    cos: Tensor
    sin: Tensor
    interleaved: bool
    begin: int = 0


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """The norm of each head of a query or key, after its rotation. Attributes as in `Norm`."""

    weight: Tensor | None
    bias: Tensor | None
    eps: float
    center: bool


@dataclass(eq=False, slots=True)
class Attend:
    """Rotate queries and keys, norm them if required, store keys and values, attend.

    Attributes:
        layer: the layer whose keys and values it attends to.
        key, value: stored there; None if an earlier operation stores them, whose layer this one
            shares (cross-layer attention, arXiv 2405.12981). There is no value if it is the first
            part of the key (`engine.model.attention.latent`).
        rotated: [tokens, columns] each, the recorded query after rotation and norm, and the key if
            it stores one.
        params: parameters of the layer; sinks are in float32.
    """

    out: Value
    layer: int
    query: View
    key: View | None
    value: View | None
    heads: int
    kv_heads: int
    query_rotation: Rotation | None
    key_rotation: Rotation | None
    rotated: tuple[Tensor, ...]
    params: AttentionParams
    query_norm: HeadNorm | None = None
    key_norm: HeadNorm | None = None


@dataclass(eq=False, slots=True)
class Convolve:
    """Activation of a causal convolution of each column with its own weights.

    A sequence's state is the last inputs of each column.

    Attributes:
        weight: [taps, columns] float32, the newest token's tap last.
        bias: [columns] float32.
    """

    out: Value
    x: View
    weight: Tensor
    bias: Tensor | None
    activation: str


@dataclass(eq=False, slots=True)
class Recur:
    """Linear attention with a state for each head that decays from token to token.

    Attributes:
        query, key: key_heads * key_dim columns.
        value: heads * value_dim columns.
        decay, beta: a column for each head.
    """

    out: Value
    query: View
    key: View
    value: View
    decay: View
    beta: View | None
    way: Recurrence


@dataclass(eq=False, slots=True)
class Experts:
    """A mixture of experts: the weighted sum of the results of each row's chosen experts.

    Attributes:
        logits: logits of the router, one column for each expert, in float32.
        weights: gate, up and down, or up and down: [experts, features, columns] each.
        biases: [experts, features], one for each weight, or none.
        activation: activation of up, without a gate.
        gating: how gate and up are combined; None without a gate.
    """

    out: Value
    x: View
    logits: View
    routing: Routing
    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    activation: str
    gating: Gating | None


@dataclass(eq=False, slots=True)
class PerHead:
    """The product of each head's first columns with the head's own matrix. A head's other columns
    are copied after the result.

    Attributes:
        weight: [heads, out columns, x columns].
    """

    out: Value
    x: View
    weight: Tensor

    @property
    def heads(self) -> int:
        return self.weight.shape[0]

    @property
    def stay(self) -> int:
        """Columns of each head that are copied."""
        return self.x.columns // self.heads - self.weight.shape[2]


@dataclass(eq=False, slots=True)
class Beside:
    """The columns of x, followed by those of y."""

    out: Value
    x: View
    y: View


@dataclass(eq=False, slots=True)
class Gather:
    """Selects the rows that sample."""

    out: Value
    x: View


@dataclass(eq=False, slots=True)
class Opaque:
    """Repeats calls of the model unchanged, in torch.

    Attributes:
        name: the called module's class, or the function.
    """

    out: Value
    name: str
    inputs: tuple[View, ...]
    replay: Replay


@dataclass(eq=False, slots=True)
class ByTorch:
    """Computes an operation in torch, by its definition, because its kernel is wrong.

    Attributes:
        operation: the operation, with the model's own weights.
        reason: why its kernel is not used, as a clause.
    """

    operation: Kerneled
    reason: str

    @property
    def out(self) -> Value:
        return self.operation.out


# Operations with kernels of ours.
Kerneled = (
    Embed
    | Norm
    | Linear
    | Gated
    | Elementwise
    | Attend
    | Convolve
    | Recur
    | Experts
    | PerHead
    | Beside
    | Gather
)
Operation = Kerneled | Opaque | ByTorch


@dataclass(frozen=True, slots=True)
class Graph:
    """Operations in order; the last one computes the logits.

    Attributes:
        looked_up: [vocab_size] int64, the id that embeddings look up for each token; None if it is
            the token's own.
    """

    operations: list[Operation]
    logits: Value
    looked_up: Tensor | None = None


def rows_of(product: Linear, view: View) -> tuple[Weight, tuple[Tensor, ...]]:
    """Weight and bias of some columns of a product with one weight."""
    rows = slice(view.column, view.column + view.columns)
    (weight,) = product.weights
    return weight[rows], tuple(bias[rows] for bias in product.biases)


def definition(operation: Operation) -> Kerneled | Opaque:
    """The operation itself, independent of its implementation."""
    return operation.operation if isinstance(operation, ByTorch) else operation


def reads(operation: Operation) -> list[View]:
    """The views that an operation reads."""
    match operation:
        case Embed():
            return []
        case Attend(query=query, key=key, value=value):
            return [query, *(view for view in (key, value) if view is not None)]
        case Recur(query=query, key=key, value=value, decay=decay, beta=beta):
            read = [query, key, value, decay]
            return read if beta is None else [*read, beta]
        case Linear(x=x, residual=residual):
            return [x] if residual is None else [x, residual]
        case Experts(x=x, logits=logits):
            return [x, logits]
        case Elementwise(x=x, y=View() as y) | Beside(x=x, y=y):
            return [x, y]
        case Opaque(inputs=inputs):
            return list(inputs)
        case ByTorch(operation=inner):
            return reads(inner)
        case _:
            return [operation.x]
