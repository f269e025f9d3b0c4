"""Buffers: memory for the values of a graph, reused when a value is no longer read."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from engine.model.program.graph import Graph, Operation, Value, View

_Kind = tuple[bool, int, torch.dtype]


class Buffers:
    """The matrices of a graph's values, allocated while the graph is traversed in order.

    Args:
        max_tokens, max_samples: rows of matrices with a row for each token, and for each row that
            samples.
        dtype: type of all values but the logits.
        multiple: matrices are padded with columns of zeros to a multiple of this.
        adds_in_place: whether operations may overwrite a view (`Operation.overwritten`).
        also: other values that operations may read, by the operations' `id`.
        made: called with each new matrix, and whether its rows are those that sample.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        max_tokens: int,
        max_samples: int,
        dtype: torch.dtype,
        device: torch.device,
        multiple: int,
        adds_in_place: bool = False,
        also: Mapping[int, View] | None = None,
        made: Callable[[Tensor, bool], None] = lambda matrix, per_sample: None,
    ) -> None:
        self._rows = {False: max_tokens, True: max_samples}
        self._dtype = dtype
        self._device = device
        self._multiple = multiple
        self._adds_in_place = adds_in_place
        self._also = also or {}
        self._made = made
        # Logits are float32 from the head on, through all later operations on them, because
        # sampling needs them unrounded.
        self._logits = {id(graph.logits)}
        definitions = [operation.definition for operation in graph.operations]
        for one in reversed(definitions):
            views = one.in_float32(id(one.out) in self._logits)
            self._logits |= {id(view.value) for view in views}
        self._in_part = {id(view.value) for one in definitions for view in one.reads_past(multiple)}
        self._last = {id(graph.logits): len(graph.operations)}
        for at, operation in enumerate(graph.operations):
            for value in (operation.out, *(one.value for one in self._reads(operation))):
                self._last[id(value)] = max(at, self._last.get(id(value), 0))
        self._matrices: list[Tensor] = []
        self._at: dict[int, int] = {}
        self._held: list[Value] = []
        self._free: dict[_Kind, list[int]] = {}

    def enter(self, at: int, operation: Operation) -> None:
        """Allocate an operation's result, beside all values that it reads.

        Args:
            at: the operation's index in the graph.
        """
        for value in [one for one in self._held if self._last[id(one)] < at]:
            self._held.remove(value)
            self._free[self._kind(value)].append(self._at[id(value)])
        value = operation.out
        free = self._free.setdefault(self._kind(value), [])
        replaced = self._replaced(at, operation)
        if replaced is not None:
            self._held.remove(replaced)
            self._at[id(value)] = self._at[id(replaced)]
        else:
            self._at[id(value)] = free.pop() if free else self._make(value)
        self._held.append(value)

    def place(self, view: View) -> tuple[int, int, int]:
        """The matrix number of a view, its first column, and its number of columns."""
        return self._at[id(view.value)], view.column, view.columns

    def tensor(self, view: View) -> Tensor:
        """The columns of a view: [most rows, columns]."""
        matrix = self._matrices[self._at[id(view.value)]]
        return matrix[:, view.column : view.column + view.columns]

    def whole(self, value: Value) -> Tensor:
        """All columns of a value: [most rows, width]."""
        return self.tensor(View(value, 0, value.width))

    def _replaced(self, at: int, operation: Operation) -> Value | None:
        """The value that an operation may overwrite, because nothing else reads it."""
        view = operation.overwritten
        if not self._adds_in_place or view is None:
            return None
        free = (
            view.is_whole
            and view.value in self._held
            and self._last[id(view.value)] == at
            and sum(view.value is other.value for other in self._reads(operation)) == 1
            and self._kind(view.value) == self._kind(operation.out)
        )
        return view.value if free else None

    def _reads(self, operation: Operation) -> list[View]:
        also = self._also.get(id(operation))
        return operation.reads() if also is None else [*operation.reads(), also]

    def _kind(self, value: Value) -> _Kind:
        if id(value) in self._logits:
            return value.per_sample, value.width, torch.float32
        width = value.width + (self._multiple if id(value) in self._in_part else 0)
        return value.per_sample, -(-width // self._multiple) * self._multiple, self._dtype

    def _make(self, value: Value) -> int:
        per_sample, width, dtype = self._kind(value)
        # It is zeroed, because kernels read the columns past a value's width and never write them.
        matrix = _zeros(self._rows[per_sample], width, dtype, self._device)
        self._made(matrix, per_sample)
        self._matrices.append(matrix)
        return len(self._matrices) - 1


def _zeros(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocate a matrix of zeros. On the CPU its rows take no memory until a step needs them: the
    logits of 256 rows are 268 MB with a vocabulary of 262,144 words, and torch would write them
    all.
    """
    size = rows * columns * dtype.itemsize
    if device.type != "cpu" or not size:
        return torch.zeros(rows, columns, dtype=dtype, device=device)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(rows, columns)
