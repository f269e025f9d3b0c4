"""build: turns a graph into a program of native kernels, laid out for the largest step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from engine.cache.storage import KVStorage
from engine.model.program.graph import (
    Attend,
    Elementwise,
    Embed,
    Gated,
    Gather,
    Graph,
    Linear,
    Norm,
    Opaque,
    Operation,
    Value,
    View,
    reads,
)
from engine.model.program.pack import Packer

# A tile's depth, in numbers. Kernels read rows up to a multiple of it, so buffers are filled up to
# that with columns of zeros.
_DEPTH = 32

NativeView = tuple[int, int, int]  # buffer, first column, columns
Packed = tuple[Tensor | None, Tensor | None]  # weight and bias


@dataclass(frozen=True, slots=True)
class Stage:
    """What one operation became.

    Attributes:
        first, last: the program's instructions [first, last); none for an opaque module.
        out: [rows, width], where its result goes.
        given: the input of an opaque module, or query and key of attention, which are rotated in
            place; empty for other operations.
    """

    operation: Operation
    first: int
    last: int
    out: Tensor
    given: tuple[Tensor, ...]


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
    model: nn.Module,
    native: ModuleType,
    storage: KVStorage,
    *,
    max_tokens: int,
    max_samples: int,
) -> Built:
    """Lay out a graph as a program.

    The model's matrices go over into the program. After that the model can run its opaque modules
    only.

    Args:
        storage: a pool to begin with; its type is that of the whole program.
        max_tokens, max_samples: most tokens of a step, and most rows that sample in it.
    """
    return _Builder(graph, model, native, storage, max_tokens, max_samples).build()


def attach(program: Any, storage: KVStorage) -> None:
    """Let a program's steps use this pool from now on."""
    for layer, (keys, values) in enumerate(zip(storage.keys, storage.values, strict=True)):
        program.cache(layer, keys, values, storage.shape.head_dim, storage.shape.value_dim)


class _Builder:
    def __init__(
        self,
        graph: Graph,
        model: nn.Module,
        native: ModuleType,
        storage: KVStorage,
        max_tokens: int,
        max_samples: int,
    ) -> None:
        self._graph = graph
        self._packer = Packer(native, model, graph.operations)
        self._program = native.Program()
        self._memory = _Memory(self._program, graph, max_tokens, max_samples, storage.shape.dtype)
        self._dtype = storage.shape.dtype
        attach(self._program, storage)

    def build(self) -> Built:
        operations = self._graph.operations
        # All products are packed first, because a table that is tied to one is looked up in its
        # packed weights.
        packed = {id(one): self._pack(one) for one in operations}
        stages = []
        for at, operation in enumerate(operations):
            self._memory.enter(at, operation)
            first = len(self._program)
            self._emit(operation, packed[id(operation)])
            given: tuple[Tensor, ...]
            match operation:
                case Opaque(x=x):
                    given = (self._memory.tensor(x),)
                case Attend(query=query, key=key):
                    given = (self._memory.tensor(query), self._memory.tensor(key))
                case _:
                    given = ()
            out = self._memory.tensor(_whole(operation.out))
            stages.append(Stage(operation, first, len(self._program), out, given))
        return Built(self._program, stages, self._memory.tensor(_whole(self._graph.logits)))

    def _pack(self, operation: Operation) -> Packed:
        match operation:
            case Linear():
                return self._packer.linear(operation)
            case Gated():
                return self._packer.gated(operation)
            case _:
                return None, None

    def _emit(self, operation: Operation, packed: Packed) -> None:
        program, view = self._program, self._memory.view
        out = view(_whole(operation.out))
        weight, bias = packed
        match operation:
            case Embed():
                table, is_packed = self._packer.table(operation)
                rows = len(operation.table)
                program.embed(out, table, rows, is_packed, operation.positions)
            case Norm(x=x, groups=groups, weight=scale, bias=shift, eps=eps, center=center):
                program.norm(out, view(x), groups, scale, shift, eps, center)
            case Linear(x=x, residual=residual):
                program.linear(
                    out,
                    view(x),
                    weight,
                    operation.out.width,
                    x.columns,
                    bias,
                    False,
                    operation.activation,
                    None if residual is None else view(residual),
                    operation.alpha,
                )
            case Gated(x=x):
                columns = -(-operation.out.width // 16) * 32
                program.linear(
                    (out[0], 0, columns // 2),
                    view(x),
                    weight,
                    columns,
                    x.columns,
                    bias,
                    True,
                    operation.activation,
                    None,
                    1.0,
                )
            case Elementwise(x=x, y=y):
                other = y.to(self._dtype) if isinstance(y, Tensor) else y and view(y)
                program.elementwise(
                    out, view(x), operation.combine, other, operation.activation, operation.alpha
                )
            case Attend():
                self._emit_attention(operation, out)
            case Gather(x=x):
                program.gather(out, view(x))
            case Opaque():
                pass

    def _emit_attention(self, operation: Attend, out: NativeView) -> None:
        program, view = self._program, self._memory.view
        query, key = view(operation.query), view(operation.key)
        # They are rotated in place, because nothing but attention reads them
        # (`engine.model.program.fuse` sees to that).
        for part, heads, rotation in (
            (query, operation.heads, operation.query_rotation),
            (key, operation.kv_heads, operation.key_rotation),
        ):
            if rotation is not None:
                program.rotate(part, heads, rotation.cos, rotation.sin, rotation.interleaved)
        program.store(operation.layer, key, view(operation.value))
        params = operation.params
        program.attend(
            out,
            query,
            operation.layer,
            operation.heads,
            params.scaling,
            params.window or 0,
            params.softcap or 0.0,
            params.sinks,
        )


class _Memory:
    """Buffers of the values. A buffer is taken again when its value is no longer read."""

    def __init__(
        self, program: Any, graph: Graph, max_tokens: int, max_samples: int, dtype: torch.dtype
    ) -> None:
        self._program = program
        self._rows = {False: max_tokens, True: max_samples}
        self._dtype = dtype
        # Logits are in float32 from the head on, whatever is then done to each of them, because
        # sampling wants no rounded ones.
        self._logits = {id(graph.logits)}
        for operation in reversed(graph.operations):
            if isinstance(operation, Elementwise) and id(operation.out) in self._logits:
                self._logits |= {id(view.value) for view in reads(operation)}
        self._last = {id(graph.logits): len(graph.operations)}
        for at, operation in enumerate(graph.operations):
            for value in (operation.out, *(one.value for one in reads(operation))):
                self._last[id(value)] = max(at, self._last.get(id(value), 0))
        self._buffers: list[Tensor] = []
        self._at: dict[int, int] = {}
        self._held: list[Value] = []
        self._free: dict[tuple[bool, int, torch.dtype], list[int]] = {}

    def enter(self, at: int, operation: Operation) -> None:
        """Give an operation's result its place, beside all that it reads."""
        for value in [one for one in self._held if self._last[id(one)] < at]:
            self._held.remove(value)
            self._free[self._kind(value)].append(self._at[id(value)])
        value = operation.out
        free = self._free.setdefault(self._kind(value), [])
        self._at[id(value)] = free.pop() if free else self._make(value)
        self._held.append(value)

    def view(self, view: View) -> NativeView:
        return self._at[id(view.value)], view.column, view.columns

    def tensor(self, view: View) -> Tensor:
        buffer = self._buffers[self._at[id(view.value)]]
        return buffer[:, view.column : view.column + view.columns]

    def _kind(self, value: Value) -> tuple[bool, int, torch.dtype]:
        if id(value) in self._logits:
            return value.per_sample, value.width, torch.float32
        return value.per_sample, -(-value.width // _DEPTH) * _DEPTH, self._dtype

    def _make(self, value: Value) -> int:
        per_sample, width, dtype = self._kind(value)
        # It holds zeros, because kernels read the columns past a value's width and never write
        # them.
        buffer = torch.zeros(self._rows[per_sample], width, dtype=dtype)
        index: int = self._program.buffer(buffer, per_sample)
        assert index == len(self._buffers)
        self._buffers.append(buffer)
        return index


def _whole(value: Value) -> View:
    return View(value, 0, value.width)


def segments(stages: list[Stage]) -> Iterator[tuple[int, int, Stage | None]]:
    """Runs of instructions, each with the opaque module to run after it, if any."""
    first = last = 0
    for stage in stages:
        if isinstance(stage.operation, Opaque):
            yield first, last, stage
            first = last = stage.last
        else:
            last = stage.last
    yield first, last, None
