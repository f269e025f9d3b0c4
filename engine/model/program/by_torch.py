"""by_torch: operations computed in torch by their definitions, and whatever else torch runs between
two segments of a program.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from time import perf_counter

import torch
from torch import Tensor

from engine.api.status import OffPath
from engine.cache.storage import KVStorage
from engine.model.attention.base import IntArray
from engine.model.attention.batch import PackedStep
from engine.model.attention.torch_backend import TorchAttention
from engine.model.files.compact import CompactWeights
from engine.model.program.coded import Coded
from engine.model.program.graph import Graph, Operation, View
from engine.model.program.opaque import Opaque
from engine.model.program.operations.embed import Embed
from engine.model.program.operations.kerneled import ByTorch, Kerneled, TorchStep, Weighted
from engine.model.program.stage import Stage
from engine.model.program.verify import MismatchError, Wrong
from engine.model.program.weights import Weight, address_of, floats, matrix_of
from engine.model.state.slots import StateSlots


def set_apart(graph: Graph, wrong: Iterable[Wrong]) -> Graph:
    """The graph with some of its operations assigned to torch.

    Raises:
        MismatchError: the graph is not the one whose operations were found wrong.
    """
    operations = list(graph.operations)
    for one in wrong:
        operation = operations[one.at] if one.at < len(operations) else None
        if operation is None or (one.kind, one.columns) != (
            operation.kind,
            operation.out.width,
        ):
            raise MismatchError(
                f"{one.kind} of {one.columns} columns is not where its kernel was found wrong"
            )
        if isinstance(operation, Kerneled):
            operations[one.at] = ByTorch(operation, one.reason)
    return replace(graph, operations=operations)


def weights_kept(graph: Graph, coded: Coded | None) -> int:
    """Bytes of weights kept by operations assigned to torch, beyond those that kernels would need
    in their place: weights that a kernel also packs, or would have packed as codes.
    """
    packed = {
        address_of(weight)
        for one in graph.operations
        if isinstance(one, Weighted)
        for weight in one.weights
    }
    apart = [one.operation for one in graph.operations if isinstance(one, ByTorch)]
    weights = [
        weight
        for operation in apart
        if isinstance(operation, Weighted)
        for weight in operation.weights
        if address_of(weight) in packed or (coded is not None and coded.is_codes(weight))
    ]
    tables = [
        one.table for one in apart if isinstance(one, Embed) and address_of(one.table) in packed
    ]
    kept = {
        address_of(one): matrix_of(one).untyped_storage().nbytes() for one in (*weights, *tables)
    }
    return sum(kept.values())


def unpack(graph: Graph, compact: CompactWeights, dtype: torch.dtype) -> None:
    """Give operations assigned to torch their own weights, in the program's type, if they read
    parameters in stored form.
    """

    def own(weight: Weight) -> Weight:
        return weight if compact.of(matrix_of(weight)) is None else floats(weight, compact, dtype)

    for one in graph.operations:
        match one:
            case ByTorch(operation=Weighted() as operation):
                operation.weights = tuple(map(own, operation.weights))
            case ByTorch(operation=Embed() as operation):
                operation.table = own(operation.table)  # type: ignore[assignment]


class Between:
    """Runs, between two segments of a CPU program, opaque operations and those assigned to torch.

    Args:
        stages: stages of the program.
        places: see `engine.cache.storage.places`.
        slots: memory of states; None if the model keeps none.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        places: Sequence[tuple[int, int]],
        slots: StateSlots | None,
    ) -> None:
        self._stages = [one for one in stages if one.operation.in_torch]
        self._places = places
        self._slots = slots
        self._parts: Sequence[KVStorage] = ()
        self._attention = TorchAttention()
        self._step: TorchStep | None = None
        self._seconds: dict[int, float] = {}
        self._shares: dict[int, float] = {}
        self._fewest = sys.maxsize

    def attach(self, parts: Sequence[KVStorage]) -> None:
        """Use this pool in the following steps."""
        self._parts = parts
        self._step = None

    def run(self, stage: Stage, step: PackedStep, ids: IntArray) -> None:
        """Compute a stage of a step, if it has any rows.

        Args:
            ids: [T], the ids for embeddings to look up.
        """
        begun = perf_counter()
        self._run(stage, step, ids)
        self._seconds[id(stage.operation)] = perf_counter() - begun

    def _run(self, stage: Stage, step: PackedStep, ids: IntArray) -> None:
        operation = stage.operation
        tokens, samples = len(step.input_ids), len(step.last_tokens)
        rows = samples if operation.out.per_sample else tokens
        if not rows:
            return
        out = stage.out[:rows]
        if isinstance(operation, Opaque):
            inputs, positions = [one[:rows] for one in stage.given], step.position_ids
            out[:] = operation.replay(rows, inputs, torch.from_numpy(positions))
            return
        assert isinstance(operation, ByTorch)
        inner = operation.operation
        given = dict(zip(inner.reads(), stage.given, strict=True))

        def of(view: View) -> Tensor:
            return given[view][: samples if view.value.per_sample else tokens]

        if self._step is None or self._step.packed is not step:
            self._step = TorchStep(
                step, ids, self._attention, self._parts, self._places, self._slots
            )
        out[:] = inner.run(of, self._step)

    def note(self, step: PackedStep, seconds: float) -> None:
        """Record torch's share of a step's time, if the step is the smallest so far. A self-test
        ends with a step of three tokens.
        """
        if self._stages and len(step.input_ids) < self._fewest:
            self._fewest = len(step.input_ids)
            self._shares = {at: spent / seconds for at, spent in self._seconds.items()}

    def off_path(self) -> tuple[OffPath, ...]:
        """The operations that torch runs, with their share of the smallest step in `note`."""
        return off_path(
            (one.operation for one in self._stages),
            lambda operation: self._shares.get(id(operation)),
        )


def off_path(
    operations: Iterable[Operation],
    share: Callable[[Operation], float | None] = lambda operation: None,
) -> tuple[OffPath, ...]:
    """The operations of a program that torch computes: one entry for each kind and width.

    Args:
        share: returns the share of a decode step's time, from 0 to 1; None if not measured.
    """
    found: dict[tuple[str, int], list[Operation]] = defaultdict(list)
    for one in operations:
        if one.in_torch:
            found[one.kind, one.out.width].append(one)
    return tuple(
        OffPath(name, columns, len(alike), _why(alike[0]), _sum([share(one) for one in alike]))
        for (name, columns), alike in found.items()
    )


def _why(operation: Operation) -> str:
    return operation.reason if isinstance(operation, ByTorch) else "no kernel of ours computes it"


def _sum(shares: Sequence[float | None]) -> float | None:
    known = [one for one in shares if one is not None]
    return sum(known) if len(known) == len(shares) else None
