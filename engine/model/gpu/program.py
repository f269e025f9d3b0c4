"""GpuProgram: a graph as launches over memory laid out beforehand, for a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

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
from engine.model.program.operations.convolve import Convolve
from engine.model.program.operations.elementwise import Beside, Elementwise
from engine.model.program.operations.embed import Embed
from engine.model.program.operations.experts import Experts
from engine.model.program.operations.gather import Gather
from engine.model.program.operations.kerneled import ByTorch, Kerneled
from engine.model.program.operations.linear import Gated, Linear
from engine.model.program.operations.norm import Norm
from engine.model.program.operations.per_head import PerHead
from engine.model.program.operations.recur import Recur
from engine.model.program.originals import Originals
from engine.model.program.routing import Routing
from engine.model.program.stage import Stage
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


class GpuProgram:
    """Launches that compute a graph, in order.

    Products are torch's, which are cuBLAS's, unless another way was chosen for few rows; all others
    are our Triton kernels. A launch may be captured in a CUDA graph: it takes its sizes from its
    inputs, allocates nothing and waits for nothing. An opaque operation may do all of these.

    The model's matrices move into the program. After that the model can run the modules of its
    opaque operations only.

    Args:
        model: in the type and on the device of the whole program.
        programs: items of attention that fill the device, as `engine.triton.work.cut` takes it.
        max_tokens, max_samples: most tokens of a step, and most rows that sample in it.

    Attributes:
        stages: the launches of each operation.
        kinds: the kinds of attention that its layers have.
        logits: [max_samples, vocab_size] float32, contiguous.
        products: the products that the kernel for few rows can compute too.
    """

    def __init__(
        self,
        graph: Graph,
        model: nn.Module,
        resident: Resident,
        *,
        dtype: torch.dtype,
        programs: int,
        max_tokens: int,
        max_samples: int,
    ) -> None:
        self._resident = resident
        self._originals = Originals(model.parameters(), graph.operations)
        self._programs = programs
        self._dtype = dtype
        self._rows = {False: max_tokens, True: max_samples}
        self._norms = foldable_norms(graph, dtype)
        self._choices: dict[ProductShape, Choice] = {}
        self._choice_of_norm: dict[int, Choice] = {}
        for operation in graph.operations:
            if isinstance(operation, Linear | Gated):
                self._prepare(operation)
        self._buffers = Buffers(
            graph,
            max_tokens=max_tokens,
            max_samples=max_samples,
            dtype=dtype,
            device=resident.latest.device,
            multiple=_MULTIPLE,
            adds_in_place=True,
            also={reader: normed.x for reader, normed in self._norms.items()},
        )
        self._both: dict[bool, Tensor] = {}
        self._rooms: dict[tuple[int, ...], ExpertRoom] = {}
        self._launches: list[Launch] = []
        self.products: list[Product] = []
        self.stages: list[Stage] = []
        self.kinds: list[AttentionKind] = []
        for at, operation in enumerate(graph.operations):
            self._add(at, operation)
        self.logits = self._buffers.whole(graph.logits)

    @property
    def num_launches(self) -> int:
        """Launches of a step of many rows, opaque operations counted as one each."""
        mixes = sum(isinstance(one.operation, Experts) for one in self.stages)
        more = sum(len(one.launches) - 1 for one in self.products)
        return len(self._launches) + more + mixes * (_EXPERT_LAUNCHES - 1)

    def check(self, tokens: int, samples: int) -> None:
        """Check that a step fits into the program's buffers.

        Raises:
            ValueError: it does not fit, and would write past the program's memory.
        """
        if tokens > self._rows[False] or samples > self._rows[True]:
            raise ValueError(
                f"a step of {tokens} tokens, {samples} of which sample, does not fit into a "
                f"program for {self._rows[False]} and {self._rows[True]}"
            )

    def run(self, inputs: StepInputs[Tensor], first: int = 0, last: int | None = None) -> None:
        """Launch instructions [first, last)."""
        for launch in self._launches[first:last]:
            launch(inputs)

    def _add(self, at: int, operation: Operation) -> None:
        self._buffers.enter(at, operation)
        first = len(self._launches)
        self._emit(operation)
        changed = [view for view, _ in operation.changes()]
        given = tuple(
            map(self._buffers.tensor, operation.reads() if operation.in_torch else changed)
        )
        # The first launch of attention rotates and stores, the second one attends.
        rotated = first + bool(changed)
        out = self._buffers.whole(operation.out)
        self.stages.append(Stage(operation, first, rotated, len(self._launches), out, given))

    def _emit(self, operation: Operation) -> None:
        tensor = self._buffers.tensor
        out = self._buffers.whole(operation.out)
        per_sample = operation.out.per_sample
        match operation:
            case Embed(table=table, positions=by_position):
                latest = None if by_position else self._resident.latest
                self._launches.append(
                    lambda given: embed(
                        out[: len(given.ids)],
                        table,
                        given.positions if by_position else given.ids,
                        latest,
                    )
                )
            case Norm():
                launch = self._norm_launch(operation)
                choice = self._choice_of_norm.get(id(operation))
                self._of_rows(
                    per_sample,
                    launch if choice is None else lambda n: choice.of(n) is None and launch(n),
                )
            case Linear() | Gated():
                self._product(operation, out)
            case Elementwise(x=x, combine=combine, y=y, activation=name, alpha=alpha):
                if isinstance(y, Tensor) or y is None:
                    self._matrix(
                        per_sample,
                        lambda a, b: elementwise(a, b, combine, y, name, alpha),
                        out,
                        tensor(x),
                    )
                else:
                    self._matrix(
                        per_sample,
                        lambda a, b, c: elementwise(a, b, combine, c, name, alpha),
                        out,
                        tensor(x),
                        tensor(y),
                    )
            case Attend():
                self._attend(operation, out)
            case Experts():
                self._experts(operation, out)
            case Beside(x=x, y=behind):
                sides = out[:, : x.columns], out[:, x.columns :]
                for side, view in zip(sides, (x, behind), strict=True):
                    self._matrix(per_sample, elementwise, side, tensor(view))
            case Gather(x=x):
                source = tensor(x)
                self._launches.append(
                    lambda given: gather(
                        out[: len(given.last_tokens)], source[: len(given.ids)], given.last_tokens
                    )
                )
            case Opaque() | ByTorch():
                self._by_torch(operation, out)
            case Convolve() | Recur() | PerHead():
                raise AssertionError("models with states or latents run by modules on a GPU")

    def _by_torch(self, operation: Opaque | ByTorch, out: Tensor) -> None:
        """Compute an operation by torch. It allocates."""
        views = {view: self._buffers.tensor(view) for view in operation.reads()}
        inner, resident = operation.definition, self._resident

        def launch(given: StepInputs[Tensor]) -> None:
            tokens, samples = len(given.ids), len(given.last_tokens)

            def of(view: View) -> Tensor:
                return views[view][: samples if view.value.per_sample else tokens]

            rows = samples if operation.out.per_sample else tokens
            to = out[:rows]
            match inner:
                case Opaque(inputs=inputs, replay=replay):
                    # Those of padding may be anything, as ids.
                    positions = given.positions.long().clamp(min=0)
                    to.copy_(replay(rows, [*map(of, inputs)], positions))
                case Embed(table=table, positions=by_position):
                    index = (given.positions if by_position else given.ids).long()
                    if not by_position:
                        # The ids of padding are arbitrary, as in `engine.triton.embed`.
                        place = (-1 - index).clamp(0, len(resident.latest) - 1)
                        index = torch.where(index < 0, resident.latest[place].long(), index)
                    to.copy_(table[index.clamp(0, len(table) - 1)])
                case Gather(x=x):
                    to.copy_(of(x)[given.last_tokens.long().clamp(0, tokens - 1)])
                case Kerneled():
                    to.copy_(inner.compute(of))

        self._launches.append(launch)

    def _matrix(self, per_sample: bool, launch: Callable[..., object], *matrices: Tensor) -> None:
        """Add a launch over a step's rows of some matrices."""
        self._of_rows(per_sample, sliced(launch, *matrices))

    def _of_rows(self, per_sample: bool, launch: OfRows) -> None:
        """Add a launch that takes a step's number of rows."""
        self._launches.append(
            lambda given: launch(len(given.last_tokens if per_sample else given.ids))
        )

    def _norm_launch(self, operation: Norm) -> OfRows:
        given = operation
        return sliced(
            lambda a, b: norm(
                a, b, given.groups, given.weight, given.bias, given.eps, given.center
            ),
            self._buffers.whole(operation.out),
            self._buffers.tensor(operation.x),
        )

    def _prepare(self, operation: Linear | Gated) -> None:
        """Tell the norm before a product whether the product's kernel computes it."""
        if not is_readable(operation):
            self._norms.pop(id(operation), None)
            return
        shape = shape_of(operation, self._norms.get(id(operation)))
        choice = self._choices.setdefault(shape, Choice())
        if shape.has_norm:
            self._choice_of_norm[id(self._norms[id(operation)])] = choice

    def _product(self, operation: Linear | Gated, out: Tensor) -> None:
        tensor, per_sample = self._buffers.tensor, operation.out.per_sample
        before = self._norms.get(id(operation))
        shape = shape_of(operation, before) if is_readable(operation) else None
        weight = self._joined(tuple(map(dense, operation.weights)))
        bias = torch.cat(operation.biases) if operation.biases else None
        if len(operation.weights) > 1 or isinstance(operation.weights[0], Rows):
            self._originals.give_up(operation)
        x = tensor(operation.x)
        residual: Tensor | None = None
        if isinstance(operation, Gated):
            both = self._room_for_both(per_sample, len(weight))
            launches = gated_launches(out, x, weight, bias, operation.activation, both)
        else:
            residual = None if operation.residual is None else tensor(operation.residual)
            launches = linear_launches(
                out, x, weight, bias, operation.activation, residual, operation.alpha
            )
        if shape is None:
            for launch in launches:
                self._of_rows(per_sample, launch)
            return
        made = Product(
            shape,
            self._choices[shape],
            None if before is None else self._norm_launch(before),
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
        self.products.append(made)
        self._of_rows(per_sample, made)

    def _room_for_both(self, per_sample: bool, width: int) -> Tensor:
        """A buffer for gate and up side by side, shared by all layers: [rows, width]."""
        room = self._both.get(per_sample)
        if room is None or room.shape[1] < width:
            room = torch.empty(
                self._rows[per_sample],
                width,
                dtype=self._dtype,
                device=self._resident.latest.device,
            )
            self._both[per_sample] = room
        return room[:, :width]

    def _experts(self, operation: Experts, out: Tensor) -> None:
        x, logits = (self._buffers.tensor(one) for one in (operation.x, operation.logits))
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
            self._originals.give_up(operation)
        number, inner, width = up.shape
        per_sample = operation.out.per_sample
        sizes = (self._rows[per_sample] * way.chosen, number, inner, width)
        if sizes not in self._rooms:
            self._rooms[sizes] = room_for(*sizes, self._dtype, out.device)
        room = self._rooms[sizes]

        def launch(given: StepInputs[Tensor]) -> None:
            rows = given.last_tokens if per_sample else given.rows
            count = len(rows)
            experts(out[:count], x[:count], logits[:count], rows, way, weights, room)

        self._launches.append(launch)

    def _attend(self, operation: Attend, out: Tensor) -> None:
        resident, params = self._resident, operation.params
        heads, kv_heads, layer = operation.heads, operation.kv_heads, operation.layer
        query = self._buffers.tensor(operation.query)
        stored = [self._buffers.tensor(x) for x in (operation.key, operation.value) if x]
        value_dim = out.shape[1] // heads
        ways = ways_on(resident.latest.device, max(query.shape[1] // heads, value_dim), self._dtype)
        both = ways.of(heads // kv_heads)
        kind = AttentionKind(ways.tokens(heads // kv_heads), params.window)
        if kind not in self.kinds:
            self.kinds.append(kind)
        slots = most_slots(self._programs)
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

        self._launches += [rotate, attend]

    def _joined(self, weights: tuple[Tensor, ...]) -> Tensor:
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
