"""SavedGraph: a graph as plain data and tensors, so that later loadings need not read the model
again, nor build it by transformers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from engine.model.files.compact import CompactWeights
from engine.model.program import operations
from engine.model.program.graph import Graph, Value, View
from engine.model.program.opaque import Opaque
from engine.model.program.weights import Rows, matrix_of

# Constants are mainly tables of rotations: 67 MB for two kinds of layers, heads of 256 and 32,768
# positions.
_MOST_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class SavedGraph:
    """A graph without its model.

    Attributes:
        layout: operations, values and places of tensors, as JSON data.
        constants: all tensors that are not views of a stored weight, by number.
        logits: [NUM_SAMPLES, vocab_size] float32, the program's logits of the recorded pass.
    """

    layout: Any
    constants: dict[str, Tensor]
    logits: Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def names(self) -> frozenset[str]:
        """Names of the stored weights that it reads."""
        return frozenset(one[0] for one in self.layout["tensors"] if isinstance(one, list))


def save_graph(graph: Graph, weights: CompactWeights) -> SavedGraph | None:
    """Convert a graph to data, with its matrices as views of named stored weights. None if it
    contains a module, if a matrix is not a stored weight, or if constants are too large.

    Args:
        weights: the model's stored weights.
    """
    if any(isinstance(one, Opaque) for one in graph.operations):
        return None
    matrices = [matrix_of(weight) for one in graph.operations for weight in one.matrices()]
    if any(weights.named(one) is None for one in matrices):
        return None
    writer = _Writer(weights)
    layout = {
        "operations": [writer.write(one) for one in graph.operations],
        "logits": writer.write(graph.logits),
        "looked_up": writer.write(graph.looked_up),
    }
    constants = {str(number): one for number, one in enumerate(writer.constants)}
    if sum(one.untyped_storage().nbytes() for one in constants.values()) > _MOST_BYTES:
        return None
    return SavedGraph(layout | {"values": writer.values, "tensors": writer.tensors}, constants)


def restore_graph(saved: SavedGraph, weights: Mapping[str, Tensor]) -> Graph:
    """Restore a saved graph, without the results of the recorded pass.

    Args:
        weights: the stored weights, by name.

    Raises:
        Exception: it does not match these weights, or is not a graph.
    """
    reader = _Reader(saved, weights)
    every = [reader.read(one) for one in saved.layout["operations"]]
    logits, looked_up = (reader.read(saved.layout[name]) for name in ("logits", "looked_up"))
    return Graph(every, logits, looked_up)


class _Writer:
    """Converts a graph's objects to data: lists with a tag first, numbers and strings."""

    def __init__(self, weights: CompactWeights) -> None:
        self.values: list[Any] = []
        self.tensors: list[Any] = []
        self.constants: list[Tensor] = []
        self._weights = weights
        self._classes = _classes()
        self._values: dict[int, int] = {}
        self._tensors: dict[int, int] = {}
        # Keeps objects alive whose addresses are keys.
        self._held: list[object] = []

    def write(self, one: Any) -> Any:
        match one:
            case None | bool() | int() | float() | str():
                return one
            case tuple():
                return ["tuple", *map(self.write, one)]
            case Value():
                return ["value", self._number(one, self._values, self.values, self._value)]
            case Tensor():
                return ["tensor", self._number(one, self._tensors, self.tensors, self._tensor)]
        name = type(one).__name__
        if self._classes.get(name) is not type(one):
            raise TypeError(f"{name} is no part of a graph")
        return [name, *(self.write(getattr(one, field.name)) for field in dataclasses.fields(one))]

    def _number(self, one: object, known: dict[int, int], every: list[Any], write: Any) -> int:
        if id(one) not in known:
            known[id(one)] = len(every)
            every.append(write(one))
            self._held.append(one)
        return known[id(one)]

    def _value(self, one: Value) -> Any:
        rows, width = one.reference.shape
        return [rows, width, _name_of(one.reference.dtype), one.per_sample]

    def _tensor(self, one: Tensor) -> Any:
        found = self._weights.named(one)
        if found is not None:
            name, begin = found
            return [name, begin, list(one.shape), list(one.stride())]
        self.constants.append(one.detach().contiguous())
        return len(self.constants) - 1


class _Reader:
    """The inverse of `_Writer`."""

    def __init__(self, saved: SavedGraph, weights: Mapping[str, Tensor]) -> None:
        self._classes = _classes()
        self._values = [
            Value(torch.empty(rows, width, dtype=_type_of(dtype), device="meta"), bool(per_sample))
            for rows, width, dtype, per_sample in saved.layout["values"]
        ]
        self._tensors = [
            saved.constants[str(one)] if isinstance(one, int) else _view(weights[one[0]], *one[1:])
            for one in saved.layout["tensors"]
        ]

    def read(self, one: Any) -> Any:
        if not isinstance(one, list):
            return one
        tag, *rest = one
        match tag:
            case "tuple":
                return tuple(map(self.read, rest))
            case "value":
                return self._values[rest[0]]
            case "tensor":
                return self._tensors[rest[0]]
        return self._classes[tag](*map(self.read, rest))


def _classes() -> dict[str, type[Any]]:
    """The classes of a graph by name, except values and tensors."""
    kinds = operations.OPERATIONS
    return {one.__name__: one for kind in kinds for one in (kind, *kind.parts, View, Rows)}


def _view(whole: Tensor, begin: int, shape: list[int], strides: list[int]) -> Tensor:
    """A view of a weight, by its offset there.

    Raises:
        ValueError: it is not within the weight.
    """
    last = begin + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if not 0 <= begin <= last < whole.numel():
        raise ValueError(f"{shape} from {begin} is not within {tuple(whole.shape)}")
    return whole.as_strided(shape, strides, whole.storage_offset() + begin)


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _type_of(name: str) -> torch.dtype:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name} is no type")
    return found
