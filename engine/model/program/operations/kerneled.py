"""Kerneled: the base of operations that have kernels of ours, and the steps that compute them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch import Tensor

from engine.cache.storage import KVStorage
from engine.model.attention.base import IntArray, StepContext
from engine.model.attention.batch import PackedStep
from engine.model.attention.torch_backend import TorchAttention
from engine.model.program.buffers import Buffers
from engine.model.program.graph import Operation, Value, View
from engine.model.program.pack import Packer, Product
from engine.model.program.weights import Weight
from engine.model.state.slots import StateSlots

NativeView = tuple[int, int, int]  # buffer, first column, columns
# Returns the numbers of a view, [rows, columns].
Numbers = Callable[[View], Tensor]


class Kerneled(Operation, ABC):
    """An operation with a kernel of ours.

    Attributes:
        parts: the dataclasses, other than `View`, of which its fields may be.
        packs_last: whether its weights are packed after those of the operations without this, and
            may be the same as theirs.
        coded_tolerance: the largest difference from the model (`engine.model.program.verify`) with
            quantized weights. Scales are rounded to float16, and x to 15 bits; if codes were
            recognized, the model's own weights had been rounded to bfloat16.
    """

    parts: ClassVar[tuple[type, ...]] = ()
    packs_last: ClassVar[bool] = False
    coded_tolerance: ClassVar[float] = 0.02

    def pack(self, packer: Packer) -> tuple[Product, ...]:
        """Pack its weights, and remove them from it."""
        return ()

    @abstractmethod
    def emit(self, to: Emitter, *products: Product) -> None:
        """Add its instructions to a program.

        Args:
            products: its packed weights.

        Raises:
            ValueError: the kernel does not take its inputs.
        """

    def compute(self, of: Numbers) -> Tensor:
        """Compute it by its definition, at least in float32, and products in the type of their
        rows. Only if each row of the result depends on the same rows of the inputs.
        """
        raise NotImplementedError(f"the rows of {self.kind} depend on more than their inputs")

    def run(self, of: Numbers, step: TorchStep) -> Tensor:
        """Compute it by its definition, as an operation of a step."""
        return self.compute(of)


class Weighted(Kerneled):
    """An operation with weights that kernels read packed.

    Attributes:
        weights: the matrices, until they are packed.
        biases: one for each weight, or none.
    """

    weights: tuple[Weight, ...]
    biases: tuple[Tensor, ...]

    def matrices(self) -> tuple[Weight, ...]:
        """See `Operation.matrices`."""
        return self.weights

    def drop_weights(self) -> None:
        """See `Operation.drop_weights`."""
        self.weights = self.biases = ()


@dataclass(eq=False)
class ByTorch(Operation):
    """Computes an operation in torch, by its definition, because its kernel is wrong.

    Attributes:
        operation: the operation, with the model's own weights.
        reason: why its kernel is not used, as a clause.
    """

    in_torch: ClassVar[bool] = True
    out: Value = field(init=False)
    operation: Kerneled
    reason: str

    def __post_init__(self) -> None:
        self.out = self.operation.out

    @property
    def definition(self) -> Kerneled:
        """See `Operation.definition`."""
        return self.operation

    def reads(self) -> list[View]:
        """See `Operation.reads`."""
        return self.operation.reads()


@dataclass(slots=True)
class Emitter:
    """A program of native kernels, to which operations add their instructions.

    Attributes:
        program: `_native.Program`.
        native: the compiled kernels.
        dtype: type of the program.
        buffers: the values' matrices.
        states: memory for the states of sequences; None if the model keeps none.
        changed: number of instructions up to the last one that changes an input in place.
    """

    program: Any
    native: ModuleType
    dtype: torch.dtype
    buffers: Buffers
    states: StateSlots | None
    changed: int = 0

    def place(self, view: View) -> NativeView:
        """See `Buffers.place`."""
        return self.buffers.place(view)

    def place_of(self, value: Value) -> NativeView:
        """All columns of a value."""
        return self.buffers.place(View(value, 0, value.width))

    def state(self, operation: Operation, *shape: int, dtype: torch.dtype) -> Tensor:
        """Memory for an operation's state of each sequence: [slots, *shape]."""
        assert self.states is not None
        return _states(self.states, operation, *shape, dtype=dtype)


class TorchStep:
    """A step of a program, for the operations that torch computes.

    Args:
        attention: computes attention over the pool.
        parts, places: the pool (`engine.cache.storage.places`).
        slots: memory of states; None if the model keeps none.

    Attributes:
        packed: the step.
        ids: [T], the ids for embeddings to look up.
        positions: [T].
        last_tokens: [S].
    """

    def __init__(
        self,
        packed: PackedStep,
        ids: IntArray,
        attention: TorchAttention,
        parts: Sequence[KVStorage],
        places: Sequence[tuple[int, int]],
        slots: StateSlots | None,
    ) -> None:
        self.packed = packed
        self.ids = torch.from_numpy(ids)
        self.positions = torch.from_numpy(packed.position_ids)
        self.last_tokens = torch.from_numpy(packed.last_tokens)
        self._attention = attention
        self._parts = parts
        self._places = places
        self._slots = slots
        self._contexts: dict[int, StepContext] = {}

    def cache(self, layer: int) -> tuple[StepContext, int]:
        """The step over the part of the pool that holds a layer, made once for all its layers, and
        the layer's place there.
        """
        number, place = self._places[layer]
        if number not in self._contexts:
            self._contexts[number] = StepContext(
                backend=self._attention,
                storage=self._parts[number],
                slots=torch.from_numpy(self.packed.slots),
                starts=self.packed.starts,
                counts=self.packed.counts,
                block_tables=self.packed.block_tables,
            )
        return self._contexts[number], place

    def sequences(self) -> Iterator[tuple[slice, int, bool]]:
        """The tokens of each row, the slot of its state, and whether it is the first row of its
        sequence.
        """
        step, first = self.packed, 0
        for index, start, count in zip(step.index, step.starts, step.counts, strict=True):
            yield slice(first, first + int(count)), int(index), start == 0
            first += int(count)

    def state(self, operation: Operation, *shape: int, dtype: torch.dtype) -> Tensor:
        """Memory for an operation's state of each sequence: [slots, *shape]."""
        assert self._slots is not None
        return _states(self._slots, operation, *shape, dtype=dtype)


def wide(x: Tensor) -> Tensor:
    """Numbers at least in float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def part(view: NativeView, product: Product) -> NativeView:
    """The columns of a result that one of its products computes."""
    return view[0], view[1] + product.column, product.columns


def _states(slots: StateSlots, operation: Operation, *shape: int, dtype: torch.dtype) -> Tensor:
    return slots.room(id(operation), *shape, dtype=dtype, device=torch.device("cpu"))
