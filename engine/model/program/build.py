"""build: turns a graph into a program of native kernels, laid out for the largest step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from engine.cache.storage import KVStorage
from engine.model.program.arena import Arena
from engine.model.program.buffers import Buffers
from engine.model.program.coded import Coded
from engine.model.program.graph import Graph, Operation, Value, View
from engine.model.program.opaque import Opaque
from engine.model.program.operations.attend import Attend
from engine.model.program.operations.convolve import Convolve
from engine.model.program.operations.elementwise import Beside, Elementwise
from engine.model.program.operations.embed import Embed
from engine.model.program.operations.experts import Experts
from engine.model.program.operations.gather import Gather
from engine.model.program.operations.kerneled import ByTorch
from engine.model.program.operations.linear import Gated, Linear
from engine.model.program.operations.norm import Norm
from engine.model.program.operations.per_head import PerHead
from engine.model.program.operations.recur import Recur
from engine.model.program.pack import Packer, Product
from engine.model.program.stage import Stage
from engine.model.program.verify import Wrong, mismatch
from engine.model.state.slots import StateSlots

# Depth of a tile, in numbers. Kernels read rows up to a multiple of it, so buffers are padded to
# that with columns of zeros.
_DEPTH = 32

NativeView = tuple[int, int, int]  # buffer, first column, columns


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool of several parts (`engine.cache.storage.cache_shapes`).

    Attributes:
        places: see `engine.cache.storage.places`.
    """

    parts: Sequence[KVStorage]
    places: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Built:
    """A program with its memory.

    Attributes:
        program: `_native.Program`.
        logits: [max_samples, vocab_size] float32, contiguous.
    """

    program: Any
    stages: list[Stage]
    logits: Tensor


def build(
    graph: Graph,
    parameters: Iterable[Tensor],
    native: ModuleType,
    pool: Pool,
    *,
    max_tokens: int,
    max_samples: int,
    states: StateSlots | None = None,
    coded: Coded | None = None,
    arena: Arena,
) -> Built:
    """Lay out a graph as a program.

    The program takes over the model's matrices. Afterwards the model can only run its opaque
    modules.

    Args:
        parameters: the model's parameters.
        pool: the first pool; its type is that of the whole program.
        max_tokens, max_samples: most tokens, and most sampling rows, of a step.
        states: memory for the states of operations that keep them.
        coded: the model's parameters that are codes, if any.
        arena: packs the weights.

    Raises:
        MismatchError: a kernel does not support its inputs.
    """
    packer = Packer(native, parameters, graph.operations, pool.parts[0].shape.dtype, arena, coded)
    return _Builder(graph, native, packer, pool, max_tokens, max_samples, states).build()


def attach(program: Any, pool: Pool) -> None:
    """Use this pool in a program's steps from now on."""
    for layer, (number, place) in enumerate(pool.places):
        part = pool.parts[number]
        shape = part.shape
        values = part.values[place] if part.values else None
        program.cache(layer, part.keys[place], values, shape.head_dim, shape.value_dim)


class _Builder:
    def __init__(
        self,
        graph: Graph,
        native: ModuleType,
        packer: Packer,
        pool: Pool,
        max_tokens: int,
        max_samples: int,
        states: StateSlots | None,
    ) -> None:
        self._graph = graph
        self._states = states
        self._native = native
        self._packer = packer
        self._wrong: dict[int, Wrong] = {}
        self._experts: dict[int, Any] = {}  # `_native.Experts`, by operation
        self._coded_tables: set[int] = set()  # embeddings, by operation
        self._program = native.Program()
        whole = pool.parts[0].shape
        self._dtype = whole.dtype
        self._buffers = Buffers(
            graph,
            max_tokens=max_tokens,
            max_samples=max_samples,
            dtype=self._dtype,
            device=whole.device,
            multiple=_DEPTH,
            made=self._program.buffer,
        )
        attach(self._program, pool)

    def build(self) -> Built:
        operations = self._graph.operations
        # Products are packed first, because a table tied to one is looked up in its packed weights.
        products: dict[int, tuple[Product, ...]] = {}
        for at, operation in enumerate(operations):
            with self._refusing(at, operation):
                products[id(operation)] = self._pack(operation)
        stages = []
        for at, operation in enumerate(operations):
            self._buffers.enter(at, operation)
            first = len(self._program)
            if at in self._wrong:
                continue
            with self._refusing(at, operation):
                self._emit(operation, *products[id(operation)])
            given: tuple[Tensor, ...]
            match operation:
                case Opaque() | ByTorch():
                    given = tuple(map(self._buffers.tensor, operation.reads()))
                case Attend(query=query, key=key):
                    given = tuple(self._buffers.tensor(x) for x in (query, key) if x is not None)
                case _:
                    given = ()
            out = self._buffers.whole(operation.out)
            rotated = first + _rotations(operation)
            last = len(self._program)
            is_coded = id(operation) in self._coded_tables or any(
                one.how is not None for one in products[id(operation)]
            )
            stages.append(Stage(operation, first, rotated, last, out, given, is_coded))
        if self._wrong:
            raise mismatch(list(self._wrong.values()))
        return Built(self._program, stages, self._buffers.whole(self._graph.logits))

    @contextmanager
    def _refusing(self, at: int, operation: Operation) -> Iterator[None]:
        """Record that a kernel does not support an operation's inputs."""
        try:
            yield
        except ValueError as error:
            reason = f"does not take what the model gives it: {error}"
            self._wrong[at] = Wrong(at, operation.kind, operation.out.width, reason)

    def _pack(self, operation: Operation) -> tuple[Product, ...]:
        match operation:
            case Linear():
                return self._packer.linear(operation)
            case Gated():
                return (self._packer.gated(operation),)
            case Experts():
                shape = operation.weights[-1].shape
                up, down = self._packer.experts(operation)
                self._experts[id(operation)] = self._make_experts(operation, shape, up, down)
                return up, down
            case PerHead():
                return self._packer.per_head(operation)
            case _:
                return ()

    def _make_experts(
        self, operation: Experts, shape: tuple[int, ...], up: Product, down: Product
    ) -> Any:
        routing, gating = operation.routing, operation.gating
        experts, width, inner = shape
        return self._native.Experts(
            experts=experts,
            chosen=routing.chosen,
            score=routing.score,
            correction=routing.correction,
            groups=routing.groups,
            kept_groups=routing.kept,
            group_best=routing.best,
            normalised=routing.normalised,
            scale=routing.scale,
            factors=routing.factors,
            width=width,
            inner=inner,
            up=up.weight,
            up_bias=up.bias,
            gated=gating is not None,
            activation=operation.activation,
            limit=math.inf if gating is None else gating.limit,
            shift=0.0 if gating is None else gating.shift,
            down=down.weight,
            down_bias=down.bias,
            up_quantization=up.how,
            down_quantization=down.how,
        )

    def _emit(self, operation: Operation, *products: Product) -> None:
        program, view = self._program, self._buffers.place
        out = view(_whole(operation.out))
        match operation:
            case Embed():
                rows, positions = len(operation.table), operation.positions
                table, is_packed, how = self._packer.table(operation)
                if how is not None:
                    self._coded_tables.add(id(operation))
                program.embed(
                    out=out,
                    table=table,
                    vocab_size=rows,
                    packed=is_packed,
                    positions=positions,
                    quantization=how,
                )
            case Norm(x=x, groups=groups, weight=scale, bias=shift, eps=eps, center=center):
                program.norm(out, view(x), groups, scale, shift, eps, center)
            case Linear(x=x, residual=residual):
                for product in products:
                    added = None if residual is None else _part(view(residual), product)
                    program.linear(
                        out=_part(out, product),
                        x=view(x),
                        weight=product.weight,
                        n=product.columns,
                        k=x.columns,
                        bias=product.bias,
                        activation=operation.activation,
                        residual=added,
                        alpha=operation.alpha,
                        quantization=product.how,
                    )
            case Gated(x=x):
                (product,) = products
                columns = -(-operation.out.width // 16) * 32
                program.linear(
                    out=(out[0], 0, columns // 2),
                    x=view(x),
                    weight=product.weight,
                    n=columns,
                    k=x.columns,
                    bias=product.bias,
                    gated=True,
                    activation=operation.activation,
                    quantization=product.how,
                )
            case Elementwise(x=x, y=y):
                other = y.to(self._dtype) if isinstance(y, Tensor) else y and view(y)
                program.elementwise(
                    out=out,
                    x=view(x),
                    combine=operation.combine,
                    y=other,
                    activation=operation.activation,
                    alpha=operation.alpha,
                )
            case Attend():
                self._emit_attention(operation, out)
            case Convolve():
                self._emit_convolution(operation, out)
            case Recur():
                self._emit_recurrence(operation, out)
            case Experts(x=x, logits=logits):
                program.experts(out, view(x), view(logits), self._experts[id(operation)])
            case PerHead(x=x):
                self._emit_heads(operation, out, products)
            case Beside(x=x, y=y):
                program.elementwise(out=(out[0], out[1], x.columns), x=view(x))
                program.elementwise(out=(out[0], out[1] + x.columns, y.columns), x=view(y))
            case Gather(x=x):
                program.gather(out, view(x))
            case Opaque() | ByTorch():
                pass

    def _emit_heads(
        self, operation: PerHead, out: NativeView, products: tuple[Product, ...]
    ) -> None:
        program, stay = self._program, operation.stay
        buffer, column, columns = self._buffers.place(operation.x)
        each = columns // operation.heads
        for head, product in enumerate(products):
            first = column + head * each
            program.linear(
                out=_part(out, product),
                x=(buffer, first, each - stay),
                weight=product.weight,
                n=product.columns,
                k=each - stay,
            )
            if stay:
                to = out[0], out[1] + product.column + product.columns, stay
                program.elementwise(out=to, x=(buffer, first + each - stay, stay))

    def _emit_attention(self, operation: Attend, out: NativeView) -> None:
        program, view = self._program, self._buffers.place
        query = view(operation.query)
        key, value = (one and view(one) for one in (operation.key, operation.value))
        # They are rotated and normed in place, because only attention reads them
        # (`engine.model.program.fuse` ensures that).
        for part, heads, rotation, by in (
            (query, operation.heads, operation.query_rotation, operation.query_norm),
            (key, operation.kv_heads, operation.key_rotation, operation.key_norm),
        ):
            if part is not None and rotation is not None:
                program.rotate(
                    part, heads, rotation.cos, rotation.sin, rotation.interleaved, rotation.begin
                )
            if part is not None and by is not None:
                program.norm(part, part, heads, by.weight, by.bias, by.eps, by.center)
        if key is not None:
            program.store(operation.layer, key, value)
        params = operation.params
        program.attend(
            out=out,
            query=query,
            layer=operation.layer,
            heads=operation.heads,
            scaling=params.scaling,
            window=params.window or 0,
            softcap=params.softcap or 0.0,
            sinks=params.sinks,
        )

    def _emit_convolution(self, operation: Convolve, out: NativeView) -> None:
        taps, columns = operation.weight.shape
        state = self._state(operation, taps - 1, columns, dtype=self._dtype)
        x = self._buffers.place(operation.x)
        self._program.convolve(
            out, x, operation.weight, operation.bias, operation.activation, state
        )

    def _emit_recurrence(self, operation: Recur, out: NativeView) -> None:
        place, way = self._buffers.place, operation.way
        inputs = (operation.query, operation.key, operation.value, operation.decay)
        key_dim = operation.key.columns // way.key_heads
        value_dim = operation.value.columns // way.heads
        # In float32, because its sum is rounded once a token.
        state = self._state(operation, way.heads, key_dim, value_dim, dtype=torch.float32)
        low, high = way.limits
        self._program.recur(
            out=out,
            reads=[place(view) for view in inputs],
            beta=None if operation.beta is None else place(operation.beta),
            key_heads=way.key_heads,
            decay_bias=way.decay_bias,
            decay_scale=way.decay_scale,
            softplus=way.softplus,
            low=low,
            high=high,
            scaled=way.scaled,
            skip=way.skip,
            normalize=way.normalize,
            scaling=way.scaling,
            state=state,
        )

    def _state(self, operation: Operation, *shape: int, dtype: torch.dtype) -> Tensor:
        """Memory for an operation's state of each sequence: [slots, *shape]."""
        assert self._states is not None
        device = torch.device("cpu")
        return self._states.room(id(operation), *shape, dtype=dtype, device=device)


def _part(view: NativeView, product: Product) -> NativeView:
    """The columns of a result that one of its products computes."""
    return view[0], view[1] + product.column, product.columns


def _whole(value: Value) -> View:
    return View(value, 0, value.width)


def _rotations(operation: Operation) -> int:
    """Number of instructions that rotate and norm attention's inputs."""
    if not isinstance(operation, Attend):
        return 0
    rotations = operation.query_rotation, operation.key_rotation
    norms = operation.query_norm, operation.key_norm
    return sum(one is not None for one in (*rotations, *norms))
