"""Launches: the launches of each kind of operation, which a program makes in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from engine.model.attention.triton_backend import ways_on
from engine.model.gpu.cublas import OfRows, gated_launches, linear_launches, sliced
from engine.model.gpu.inputs import AttentionKind, StepInputs
from engine.model.gpu.products import (
    Choice,
    Operands,
    Product,
    ProductShape,
    foldable_norms,
    is_readable,
    shape_of,
)
from engine.model.gpu.resident import Resident
from engine.model.program.buffers import Buffers
from engine.model.program.graph import Graph, Operation, View
from engine.model.program.opaque import Opaque
from engine.model.program.operations.attend import Attend
from engine.model.program.operations.elementwise import Beside, Elementwise
from engine.model.program.operations.embed import Embed
from engine.model.program.operations.experts import Experts
from engine.model.program.operations.gather import Gather
from engine.model.program.operations.kerneled import ByTorch, Kerneled
from engine.model.program.operations.linear import Gated, Linear
from engine.model.program.operations.norm import Norm
from engine.model.program.pack import Originals
from engine.model.program.routing import Routing
from engine.model.program.weights import Rows, dense
from engine.triton.attention import Pieces, paged_attention
from engine.triton.elementwise import elementwise
from engine.triton.embed import embed
from engine.triton.experts import ExpertRoom, ExpertWeights, RouteWay, experts, room_for
from engine.triton.gather import gather
from engine.triton.norm import norm
from engine.triton.product import Normed
from engine.triton.rotary import rotate_and_store
from engine.triton.work import most_slots

# Rows of matrices are aligned to 16 bytes, for types of two bytes.
_MULTIPLE = 8

# Launches of `engine.triton.experts.experts`.
_EXPERT_LAUNCHES = 5

Launch = Callable[[StepInputs[Tensor]], object]


class Launches:
    """The launches of a program, to which operations add theirs.

    Args:
        max_tokens, max_samples: most tokens of a step, and most rows that sample in it.

    Attributes:
        every: the launches, in order.
        count: number of launches of a step of many rows, opaque operations counted as one each.
        products: the products that the kernel for few rows can compute too.
        kinds: the kinds of attention that layers have.
        resident: the tensors that stay on the device.
        buffers: the values' matrices.
        originals: the model's parameters, freed as operations copy them.
        dtype: type of the program.
        programs: items of attention that fill the device, as `engine.triton.work.cut` takes it.
        rows: most rows of a step, by whether they are those that sample.
    """

    def __init__(
        self,
        graph: Graph,
        resident: Resident,
        originals: Originals,
        *,
        dtype: torch.dtype,
        programs: int,
        max_tokens: int,
        max_samples: int,
    ) -> None:
        self.every: list[Launch] = []
        self.count = 0
        self.products: list[Product] = []
        self.kinds: list[AttentionKind] = []
        self.resident = resident
        self.originals = originals
        self.dtype = dtype
        self.programs = programs
        self.rows = {False: max_tokens, True: max_samples}
        # By the `id` of a product's operation, and of a norm's.
        self._norms = foldable_norms(graph, dtype)
        self._choice_of_norm: dict[int, Choice] = {}
        self._choices: dict[ProductShape, Choice] = {}
        self._both: dict[bool, Tensor] = {}
        self._rooms: dict[tuple[int, ...], ExpertRoom] = {}
        for operation in graph.operations:
            if isinstance(operation, Linear | Gated):
                self._choose(operation)
        self.buffers = Buffers(
            graph,
            max_tokens=max_tokens,
            max_samples=max_samples,
            dtype=dtype,
            device=resident.latest.device,
            multiple=_MULTIPLE,
            adds_in_place=True,
            also={reader: normed.x for reader, normed in self._norms.items()},
        )

    def emit(self, operation: Operation) -> None:
        """Add an operation's launches."""
        launch = LAUNCHES.get(type(operation))
        if launch is None:
            raise AssertionError(
                f"{operation.kind} has no launch: "
                "models with states or latents run by modules on a GPU"
            )
        launch(self, operation)

    def add(self, launch: Launch, count: int = 1) -> None:
        """Add a function that makes some launches of a step."""
        self.every.append(launch)
        self.count += count

    def of_rows(self, per_sample: bool, launch: OfRows, count: int = 1) -> None:
        """Add a function that takes a step's number of rows."""
        self.add(lambda given: launch(len(given.last_tokens if per_sample else given.ids)), count)

    def matrix(self, per_sample: bool, launch: Callable[..., object], *matrices: Tensor) -> None:
        """Add a launch over a step's rows of some matrices."""
        self.of_rows(per_sample, sliced(launch, *matrices))

    def out(self, operation: Operation) -> Tensor:
        """The matrix of an operation's result."""
        return self.buffers.whole(operation.out)

    def tensor(self, view: View) -> Tensor:
        """The matrix of a view."""
        return self.buffers.tensor(view)

    def norm_before(self, operation: Linear | Gated) -> Norm | None:
        """The norm before a product that the product's kernel can compute too."""
        return self._norms.get(id(operation))

    def choice_of(self, shape: ProductShape) -> Choice:
        """The choice for the products of a shape."""
        return self._choices[shape]

    def choice_of_norm(self, operation: Norm) -> Choice | None:
        """The choice for the product that can compute a norm too."""
        return self._choice_of_norm.get(id(operation))

    def room_for_both(self, per_sample: bool, width: int) -> Tensor:
        """A buffer for gate and up side by side, shared by all layers: [rows, width]."""
        room = self._both.get(per_sample)
        if room is None or room.shape[1] < width:
            device = self.resident.latest.device
            room = torch.empty(self.rows[per_sample], width, dtype=self.dtype, device=device)
            self._both[per_sample] = room
        return room[:, :width]

    def room_for_experts(self, *sizes: *tuple[int, int, int, int]) -> ExpertRoom:
        """See `engine.triton.experts.room_for`; shared by all layers."""
        if sizes not in self._rooms:
            self._rooms[sizes] = room_for(*sizes, self.dtype, self.resident.latest.device)
        return self._rooms[sizes]

    def _choose(self, operation: Linear | Gated) -> None:
        """Tell the norm before a product whether the product's kernel computes it."""
        if not is_readable(operation):
            self._norms.pop(id(operation), None)
            return
        shape = shape_of(operation, self.norm_before(operation))
        choice = self._choices.setdefault(shape, Choice())
        if shape.has_norm:
            self._choice_of_norm[id(self._norms[id(operation)])] = choice


def _embed(to: Launches, operation: Embed) -> None:
    out, by_position = to.out(operation), operation.positions
    table, latest = operation.table, None if by_position else to.resident.latest
    to.add(
        lambda given: embed(
            out[: len(given.ids)], table, given.positions if by_position else given.ids, latest
        )
    )


def _norm(to: Launches, operation: Norm) -> None:
    launch, choice = _norm_launch(to, operation), to.choice_of_norm(operation)
    to.of_rows(
        operation.out.per_sample,
        launch if choice is None else lambda n: choice.of(n) is None and launch(n),
    )


def _norm_launch(to: Launches, given: Norm) -> OfRows:
    return sliced(
        lambda a, b: norm(a, b, given.groups, given.weight, given.bias, given.eps, given.center),
        to.out(given),
        to.tensor(given.x),
    )


def _elementwise(to: Launches, operation: Elementwise) -> None:
    out, x, y = to.out(operation), to.tensor(operation.x), operation.y
    combine, name, alpha = operation.combine, operation.activation, operation.alpha
    per_sample = operation.out.per_sample
    if isinstance(y, Tensor) or y is None:
        to.matrix(per_sample, lambda a, b: elementwise(a, b, combine, y, name, alpha), out, x)
    else:
        to.matrix(
            per_sample,
            lambda a, b, c: elementwise(a, b, combine, c, name, alpha),
            out,
            x,
            to.tensor(y),
        )


def _beside(to: Launches, operation: Beside) -> None:
    out, columns = to.out(operation), operation.x.columns
    sides = out[:, :columns], out[:, columns:]
    for side, view in zip(sides, (operation.x, operation.y), strict=True):
        to.matrix(operation.out.per_sample, elementwise, side, to.tensor(view))


def _gather(to: Launches, operation: Gather) -> None:
    out, source = to.out(operation), to.tensor(operation.x)
    to.add(
        lambda given: gather(
            out[: len(given.last_tokens)], source[: len(given.ids)], given.last_tokens
        )
    )


def _by_torch(to: Launches, operation: Opaque | ByTorch) -> None:
    """Compute an operation by torch. It allocates."""
    out, views = to.out(operation), {view: to.tensor(view) for view in operation.reads()}
    inner, resident = operation.definition, to.resident

    def launch(given: StepInputs[Tensor]) -> None:
        tokens, samples = len(given.ids), len(given.last_tokens)

        def of(view: View) -> Tensor:
            return views[view][: samples if view.value.per_sample else tokens]

        rows = samples if operation.out.per_sample else tokens
        result = out[:rows]
        match inner:
            case Opaque(inputs=inputs, replay=replay):
                # Those of padding may be anything, as ids.
                positions = given.positions.long().clamp(min=0)
                result.copy_(replay(rows, [*map(of, inputs)], positions))
            case Embed(table=table, positions=by_position):
                index = (given.positions if by_position else given.ids).long()
                if not by_position:
                    # The ids of padding are arbitrary, as in `engine.triton.embed`.
                    place = (-1 - index).clamp(0, len(resident.latest) - 1)
                    index = torch.where(index < 0, resident.latest[place].long(), index)
                result.copy_(table[index.clamp(0, len(table) - 1)])
            case Gather(x=x):
                result.copy_(of(x)[given.last_tokens.long().clamp(0, tokens - 1)])
            case Kerneled():
                result.copy_(inner.compute(of))

    to.add(launch)


def _product(to: Launches, operation: Linear | Gated) -> None:
    out, tensor, per_sample = to.out(operation), to.tensor, operation.out.per_sample
    before = to.norm_before(operation)
    shape = shape_of(operation, before) if is_readable(operation) else None
    weight = _joined(tuple(map(dense, operation.weights)))
    bias = torch.cat(operation.biases) if operation.biases else None
    if len(operation.weights) > 1 or isinstance(operation.weights[0], Rows):
        to.originals.give_up(operation)
    x = tensor(operation.x)
    residual: Tensor | None = None
    if isinstance(operation, Gated):
        both = to.room_for_both(per_sample, len(weight))
        launches = gated_launches(out, x, weight, bias, operation.activation, both)
    else:
        residual = None if operation.residual is None else tensor(operation.residual)
        launches = linear_launches(
            out, x, weight, bias, operation.activation, residual, operation.alpha
        )
    if shape is None:
        for launch in launches:
            to.of_rows(per_sample, launch)
        return
    made = Product(
        shape,
        to.choice_of(shape),
        None if before is None else _norm_launch(to, before),
        launches,
        Operands(
            out,
            x if before is None else tensor(before.x),
            weight,
            None if before is None else Normed(before.weight, before.eps),
            None if bias is None else bias.float(),
            residual,
            operation.alpha if isinstance(operation, Linear) else 1.0,
        ),
    )
    to.products.append(made)
    to.of_rows(per_sample, made, count=len(launches))


def _experts(to: Launches, operation: Experts) -> None:
    out = to.out(operation)
    x, logits = (to.tensor(one) for one in (operation.x, operation.logits))
    routing, gating = operation.routing, operation.gating
    way = way_of(routing)
    # Some models store the matrix transposed (gpt-oss). A copy replaces it.
    kept = [one if one.stride(2) == 1 else one.contiguous() for one in operation.weights]
    biases = tuple(one.float().contiguous() for one in operation.biases)
    *gate, up, down = kept
    if gating is None:
        weights = ExpertWeights(None, up, down, biases, operation.activation)
    else:
        how = gating.activation, gating.limit, gating.shift
        weights = ExpertWeights(gate[0], up, down, biases, *how)
    if any(one is not given for one, given in zip(kept, operation.weights, strict=True)):
        to.originals.give_up(operation)
    number, inner, width = up.shape
    per_sample = operation.out.per_sample
    room = to.room_for_experts(to.rows[per_sample] * way.chosen, number, inner, width)

    def launch(given: StepInputs[Tensor]) -> None:
        rows = given.last_tokens if per_sample else given.rows
        count = len(rows)
        experts(out[:count], x[:count], logits[:count], rows, way, weights, room)

    to.add(launch, _EXPERT_LAUNCHES)


def _attend(to: Launches, operation: Attend) -> None:
    """The first launch rotates and stores, the second one attends."""
    out, resident, params = to.out(operation), to.resident, operation.params
    heads, kv_heads, layer = operation.heads, operation.kv_heads, operation.layer
    query = to.tensor(operation.query)
    stored = [to.tensor(x) for x in (operation.key, operation.value) if x]
    value_dim = out.shape[1] // heads
    ways = ways_on(resident.latest.device, max(query.shape[1] // heads, value_dim), to.dtype)
    both = ways.of(heads // kv_heads)
    kind = AttentionKind(ways.tokens(heads // kv_heads), params.window)
    if kind not in to.kinds:
        to.kinds.append(kind)
    slots = most_slots(to.programs)
    room = [resident.parts(slots, kv_heads, way.rows, value_dim=value_dim) for way in both]

    def rotate(given: StepInputs[Tensor]) -> None:
        tokens = len(given.ids)
        key, value = (x[:tokens] for x in stored) if stored else (None, None)
        rotate_and_store(
            query[:tokens],
            key,
            value,
            operation.query_rotation,
            operation.key_rotation,
            *resident.cache(layer),
            given.rows,
            given.positions,
            resident.block_tables,
            heads=heads,
            kv_heads=kv_heads,
        )

    def attend(given: StepInputs[Tensor]) -> None:
        tokens = len(given.ids)
        for way, items, merges, parts in zip(
            both, given.items[kind], given.merges[kind], room, strict=True
        ):
            paged_attention(
                _by_head(out[:tokens], heads),
                _by_head(query[:tokens], heads),
                *resident.cache(layer),
                Pieces(way, items, merges, *parts),
                resident.block_tables,
                scaling=params.scaling,
                softcap=params.softcap,
                window=params.window,
                sinks=params.sinks,
            )

    to.add(rotate)
    to.add(attend)


def _joined(weights: tuple[Tensor, ...]) -> Tensor:
    """Stack matrices vertically; a copy, unless they are adjacent already or there is only
    one."""
    first = weights[0]
    storage, expected = first.untyped_storage().data_ptr(), first.data_ptr()
    for weight in weights:
        # A GPU's allocator often places separate matrices next to each other.
        is_part = weight.untyped_storage().data_ptr() == storage
        if not is_part or weight.data_ptr() != expected or not weight.is_contiguous():
            return first if len(weights) == 1 else torch.cat(weights)
        expected += weight.nbytes
    return first.as_strided((sum(map(len, weights)), first.shape[1]), first.stride())


def _by_head(rows: Tensor, heads: int) -> Tensor:
    return rows.view(len(rows), heads, rows.shape[1] // heads)


def way_of(routing: Routing) -> RouteWay:
    """Convert a routing to the form of the kernels."""
    return RouteWay(
        routing.chosen,
        routing.score,
        routing.groups,
        routing.kept,
        routing.best,
        routing.normalised,
        routing.scale,
        routing.correction,
        routing.factors,
    )


# Adds the launches of an operation of each kind.
LAUNCHES: dict[type[Operation], Callable[[Launches, Any], None]] = {
    Attend: _attend,
    Beside: _beside,
    ByTorch: _by_torch,
    Elementwise: _elementwise,
    Embed: _embed,
    Experts: _experts,
    Gated: _product,
    Gather: _gather,
    Linear: _product,
    Norm: _norm,
    Opaque: _by_torch,
}
