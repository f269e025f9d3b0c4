"""build: turns a graph into a program of native kernels, laid out for the largest step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch import Tensor

from engine.cache.storage import KVStorage
from engine.model.program.arena import Arena
from engine.model.program.buffers import Buffers
from engine.model.program.coded import Coded
from engine.model.program.graph import Graph, Operation
from engine.model.program.operations.kerneled import Emitter, Kerneled
from engine.model.program.pack import Packer, Product
from engine.model.program.stage import Stage
from engine.model.program.verify import Wrong, mismatch
from engine.model.state.slots import StateSlots

# Depth of a tile, in numbers. Kernels read rows up to a multiple of it, so buffers are padded to
# that with columns of zeros.
_DEPTH = 32


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
        self._packer = packer
        self._wrong: dict[int, Wrong] = {}
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
        self._emitter = Emitter(self._program, native, self._dtype, self._buffers, states)
        attach(self._program, pool)

    def build(self) -> Built:
        operations = self._graph.operations
        # Products are packed first, because a table tied to one is looked up in its packed weights.
        products: dict[int, tuple[Product, ...]] = {}
        for at, operation in sorted(enumerate(operations), key=lambda one: _packs_last(one[1])):
            with self._refusing(at, operation):
                products[id(operation)] = self._pack(operation)
        stages = []
        for at, operation in enumerate(operations):
            self._buffers.enter(at, operation)
            first = self._emitter.changed = len(self._program)
            if at in self._wrong:
                continue
            with self._refusing(at, operation):
                self._emit(operation, *products[id(operation)])
            views = [view for view, _ in operation.changes()]
            given = tuple(
                map(self._buffers.tensor, operation.reads() if operation.in_torch else views)
            )
            out = self._buffers.whole(operation.out)
            is_coded = any(one.how is not None for one in products[id(operation)])
            changed, last = self._emitter.changed, len(self._program)
            stages.append(Stage(operation, first, changed, last, out, given, is_coded))
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
        return operation.pack(self._packer) if isinstance(operation, Kerneled) else ()

    def _emit(self, operation: Operation, *products: Product) -> None:
        if isinstance(operation, Kerneled):
            operation.emit(self._emitter, *products)


def _packs_last(operation: Operation) -> bool:
    return isinstance(operation, Kerneled) and operation.packs_last
