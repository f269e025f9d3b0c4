"""by_torch: operations computed in torch by their definitions, and whatever else torch runs between
two segments of a program.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from engine.api.status import OffPath
from engine.cache.storage import KVStorage
from engine.model.attention.base import IntArray, StepContext
from engine.model.attention.batch import PackedStep
from engine.model.attention.torch_backend import TorchAttention
from engine.model.files.compact import CompactWeights
from engine.model.program.activations import ACTIVATIONS
from engine.model.program.coded import Coded
from engine.model.program.experts import compute_expert
from engine.model.program.graph import Graph, Operation, View
from engine.model.program.linear_attention import convolve, recur
from engine.model.program.opaque import Opaque
from engine.model.program.operations.attend import Attend
from engine.model.program.operations.convolve import Convolve
from engine.model.program.operations.elementwise import Beside, Elementwise
from engine.model.program.operations.embed import Embed
from engine.model.program.operations.experts import Experts
from engine.model.program.operations.gather import Gather
from engine.model.program.operations.kerneled import ByTorch, Kerneled, Weighted
from engine.model.program.operations.linear import Gated, Linear
from engine.model.program.operations.norm import HeadNorm, Norm
from engine.model.program.operations.per_head import PerHead
from engine.model.program.operations.recur import Recur
from engine.model.program.rotation import Rotation, rotate
from engine.model.program.stage import Stage
from engine.model.program.verify import MismatchError, Wrong
from engine.model.program.weights import Weight, address_of, dense, floats, matrix_of
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


def compute(operation: Kerneled, of: Callable[[View], Tensor]) -> Tensor:
    """Compute an operation on some rows, independently, at least in float32.

    Products are computed in the type of their rows.

    Args:
        of: returns the numbers of a view, [rows, columns].
    """
    match operation:
        case Norm(x=x, groups=groups):
            rows = _wide(of(x))
            return normal(rows.reshape(len(rows), groups, -1), operation).flatten(1)
        case Linear(x=x, residual=residual, alpha=alpha):
            product = ACTIVATIONS[operation.activation](torch.cat(_products(of(x), operation), 1))
            return product if residual is None else _wide(of(residual)) + alpha * product
        case Gated(x=x):
            gate, up = _products(of(x), operation)
            return ACTIVATIONS[operation.activation](gate) * up
        case Elementwise(x=x, y=y, alpha=alpha):
            function, given = ACTIVATIONS[operation.activation], _wide(of(x))
            if operation.combine == "none":
                return function(alpha * given)
            other = _wide(of(y) if isinstance(y, View) else y) if y is not None else given
            other = other.repeat_interleave(given.shape[1] // other.shape[-1], dim=-1)
            if operation.combine == "add":
                return given + alpha * other
            return alpha * function(given) * other
        case Experts():
            return _experts(operation, of(operation.x), of(operation.logits))
        case PerHead(x=x, weight=weight):
            each = of(x).reshape(-1, operation.heads, x.columns // operation.heads)
            given, stay = each.tensor_split([weight.shape[2]], dim=2)
            made = torch.einsum("thi,hoi->tho", given, weight.to(given.dtype))
            return torch.cat((made, stay), dim=2).flatten(1)
        case Beside(x=x, y=y):
            return torch.cat((of(x), of(y)), dim=1)
        case _:
            raise AssertionError("its rows depend on each other")


def normal(x: Tensor, by: Norm | HeadNorm) -> Tensor:
    """Normalise over the last axis."""
    given = x - x.mean(-1, keepdim=True) if by.center else x
    made = given * torch.rsqrt(given.square().mean(-1, keepdim=True) + by.eps)
    made = made if by.weight is None else made * by.weight
    return made if by.bias is None else made + by.bias


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _products(x: Tensor, operation: Linear | Gated) -> list[Tensor]:
    """Products with each of an operation's weights: [rows, features] each, at least float32."""
    biases = operation.biases or (None,) * len(operation.weights)
    return [
        _wide(F.linear(x, dense(weight).to(x.dtype), None if bias is None else bias.to(x.dtype)))
        for weight, bias in zip(operation.weights, biases, strict=True)
    ]


def _experts(operation: Experts, x: Tensor, logits: Tensor) -> Tensor:
    index, weight = operation.routing.choose(logits)
    total = torch.zeros_like(_wide(x))
    for expert in sorted(set(index.flatten().tolist())):
        rows, places = (index == expert).nonzero(as_tuple=True)
        given = _wide(compute_expert(operation, x[rows], expert))
        total.index_add_(0, rows, (weight[rows, places, None] * given).to(total.dtype))
    return total


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
        self._contexts: dict[int, StepContext] = {}
        self._step: PackedStep | None = None
        self._seconds: dict[int, float] = {}
        self._shares: dict[int, float] = {}
        self._fewest = sys.maxsize

    def attach(self, parts: Sequence[KVStorage]) -> None:
        """Use this pool in the following steps."""
        self._parts = parts
        self._contexts, self._step = {}, None

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

        match inner:
            case Embed(table=table, positions=by_position):
                out[:] = table[torch.from_numpy(step.position_ids if by_position else ids)]
            case Gather(x=x):
                out[:] = of(x)[torch.from_numpy(step.last_tokens)]
            case Attend():
                out[:] = self._attend(inner, of, step)
            case Convolve(x=x):
                self._convolve(inner, of(x), step, out)
            case Recur():
                self._recur(inner, of, step, out)
            case _:
                out[:] = compute(inner, of)

    def _attend(self, operation: Attend, of: Callable[[View], Tensor], step: PackedStep) -> Tensor:
        positions = torch.from_numpy(step.position_ids)
        number, place = self._places[operation.layer]
        context = self._context(number, step)
        if operation.key is not None:
            key = _heads(
                of(operation.key),
                operation.kv_heads,
                operation.key_rotation,
                operation.key_norm,
                positions,
            )
            value = operation.value
            values = key if value is None else _heads(of(value), operation.kv_heads)
            context.storage.write(place, context.slots, key, values)
        query = _heads(
            of(operation.query),
            operation.heads,
            operation.query_rotation,
            operation.query_norm,
            positions,
        )
        return self._attention.attend(query, place, context, operation.params).flatten(1)

    def _context(self, number: int, step: PackedStep) -> StepContext:
        """The step over a part of the pool, made once for all layers."""
        if self._step is not step:
            self._contexts, self._step = {}, step
        if number not in self._contexts:
            self._contexts[number] = StepContext(
                backend=self._attention,
                storage=self._parts[number],
                slots=torch.from_numpy(step.slots),
                starts=step.starts,
                counts=step.counts,
                block_tables=step.block_tables,
            )
        return self._contexts[number]

    def _convolve(self, operation: Convolve, x: Tensor, step: PackedStep, out: Tensor) -> None:
        before = len(operation.weight) - 1
        states = self._room(operation, before, x.shape[1], dtype=x.dtype)
        for tokens, slot, is_new in _sequences(step):
            state = states[slot]
            if is_new:
                state.zero_()
            row = torch.cat((state, x[tokens]))
            made = convolve(row, operation.weight, operation.bias)[before:]
            out[tokens] = ACTIVATIONS[operation.activation](made)
            state.copy_(row[len(row) - before :])

    def _recur(
        self, operation: Recur, of: Callable[[View], Tensor], step: PackedStep, out: Tensor
    ) -> None:
        way, beta = operation.way, operation.beta
        inputs = (operation.query, operation.key, operation.value, operation.decay)
        sizes = (operation.key.columns // way.key_heads, operation.value.columns // way.heads)
        states = self._room(operation, way.heads, *sizes, dtype=torch.float32)
        for tokens, slot, is_new in _sequences(step):
            state = states[slot]
            if is_new:
                state.zero_()
            query, key, value, decay = (of(view)[tokens] for view in inputs)
            rate = None if beta is None else of(beta)[tokens]
            out[tokens] = recur(query, key, value, decay, rate, way, state)

    def _room(self, operation: Kerneled, *shape: int, dtype: torch.dtype) -> Tensor:
        """Memory for an operation's state of each sequence: [slots, *shape]."""
        assert self._slots is not None
        return self._slots.room(id(operation), *shape, dtype=dtype, device=torch.device("cpu"))

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


def _sequences(step: PackedStep) -> Iterator[tuple[slice, int, bool]]:
    """The tokens of each row, the slot of its state, and whether it is the first row of its
    sequence.
    """
    first = 0
    for index, start, count in zip(step.index, step.starts, step.counts, strict=True):
        yield slice(first, first + int(count)), int(index), start == 0
        first += int(count)


def _heads(
    x: Tensor,
    count: int,
    rotation: Rotation | None = None,
    normed: HeadNorm | None = None,
    positions: Tensor | None = None,
) -> Tensor:
    """[T, heads, size], rotated and normed."""
    split = x.reshape(len(x), count, -1)
    if rotation is not None:
        turned = rotate(
            _wide(split),
            rotation.cos[positions],
            rotation.sin[positions],
            rotation.interleaved,
            rotation.begin,
        )
        split = turned.to(x.dtype)
    return split if normed is None else normal(_wide(split), normed).to(x.dtype)
