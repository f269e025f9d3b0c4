"""GpuProgram: a graph as launches over memory laid out beforehand, for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from engine.model.gpu.inputs import AttentionKind, StepInputs
from engine.model.gpu.resident import Resident
from engine.model.program.buffers import Buffers
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
)
from engine.model.program.originals import Originals
from engine.model.program.stage import Stage
from engine.triton.attention import Pieces, paged_attention
from engine.triton.elementwise import elementwise
from engine.triton.embed import embed
from engine.triton.gated import gated
from engine.triton.gather import gather
from engine.triton.norm import norm
from engine.triton.rotary import rotate_and_store
from engine.triton.work import most_slots, tiles_of

# Rows of matrices begin where 16 bytes do, for types of two bytes.
_MULTIPLE = 8

Launch = Callable[[StepInputs[Tensor]], None]


class GpuProgram:
    """Launches that compute a graph, in order.

    Products are torch's, which are cuBLAS's; all else are our Triton kernels. A launch may be
    captured in a CUDA graph: it takes its sizes from its inputs, allocates nothing and waits for
    nothing. What an opaque module does is up to that.

    The model's matrices go over into the program. After that the model can run its opaque modules
    only.

    Args:
        model: in the type and on the device of the whole program.
        programs: items of attention that fill the device, as `engine.triton.work.cut` takes it.
        max_tokens, max_samples: most tokens of a step, and most rows that sample in it.

    Attributes:
        stages: what each operation became.
        kinds: the kinds of attention that its layers have.
        logits: [max_samples, vocab_size] float32, contiguous.
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
        self._originals = Originals(model, graph.operations)
        self._programs = programs
        self._dtype = dtype
        self._rows = {False: max_tokens, True: max_samples}
        self._buffers = Buffers(
            graph,
            max_tokens=max_tokens,
            max_samples=max_samples,
            dtype=dtype,
            device=resident.latest.device,
            multiple=_MULTIPLE,
            adds_in_place=True,
        )
        self._both: dict[bool, Tensor] = {}
        self._launches: list[Launch] = []
        self.stages: list[Stage] = []
        self.kinds: list[AttentionKind] = []
        for at, operation in enumerate(graph.operations):
            self._add(at, operation)
        self.logits = self._buffers.whole(graph.logits)

    def __len__(self) -> int:
        return len(self._launches)

    def check(self, tokens: int, samples: int) -> None:
        """See that a step has room.

        Raises:
            ValueError: it has none, and would write past the program's memory.
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
        given: tuple[Tensor, ...] = ()
        rotated = first
        match operation:
            case Opaque(x=x):
                given = (self._buffers.tensor(x),)
            case Attend(query=query, key=key):
                given = (self._buffers.tensor(query), self._buffers.tensor(key))
                rotated = first + 1
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
            case Norm(x=x, groups=groups, weight=weight, bias=bias, eps=eps, center=center):
                self._matrix(
                    per_sample,
                    lambda a, b: norm(a, b, groups, weight, bias, eps, center),
                    out,
                    tensor(x),
                )
            case Linear():
                self._linear(operation, out)
            case Gated():
                self._gated(operation, out)
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
            case Gather(x=x):
                source = tensor(x)
                self._launches.append(
                    lambda given: gather(
                        out[: len(given.last_tokens)], source[: len(given.ids)], given.last_tokens
                    )
                )
            case Opaque(x=x, module=module):
                self._matrix(per_sample, lambda a, b: _run_module(module, a, b), out, tensor(x))

    def _matrix(self, per_sample: bool, launch: Callable[..., object], *matrices: Tensor) -> None:
        """Add a launch over the rows of matrices that a step has."""

        def of_step(given: StepInputs[Tensor]) -> None:
            rows = len(given.last_tokens if per_sample else given.ids)
            launch(*(matrix[:rows] for matrix in matrices))

        self._launches.append(of_step)

    def _linear(self, operation: Linear, out: Tensor) -> None:
        per_sample, alpha = operation.out.per_sample, operation.alpha
        weight = self._joined(operation.weights)
        bias = torch.cat(operation.biases) if operation.biases else None
        x = self._buffers.tensor(operation.x)
        if len(operation.weights) > 1:
            self._originals.give_up(operation)
        columns = weight.t()
        if operation.residual is not None:
            residual = self._buffers.tensor(operation.residual)
            if residual.data_ptr() == out.data_ptr():
                self._matrix(per_sample, lambda a, b: a.addmm_(b, columns, alpha=alpha), out, x)
            else:
                self._matrix(
                    per_sample,
                    lambda a, b, c: torch.addmm(c, b, columns, alpha=alpha, out=a),
                    out,
                    x,
                    residual,
                )
            if bias is not None:
                row = bias.float() * alpha
                self._matrix(per_sample, lambda a: elementwise(a, a, "add", row), out)
            return
        if bias is not None and out.dtype == self._dtype:
            self._matrix(per_sample, lambda a, b: torch.addmm(bias, b, columns, out=a), out, x)
        else:
            self._matrix(per_sample, lambda a, b: _product(a, b, columns), out, x)
            if bias is not None:
                self._matrix(per_sample, lambda a: elementwise(a, a, "add", bias), out)
        if operation.activation != "none":
            name = operation.activation
            self._matrix(per_sample, lambda a: elementwise(a, a, "none", None, name), out)

    def _gated(self, operation: Gated, out: Tensor) -> None:
        per_sample, name = operation.out.per_sample, operation.activation
        columns = self._joined(operation.weights).t()
        bias = torch.cat([one.float() for one in operation.biases]) if operation.biases else None
        x = self._buffers.tensor(operation.x)
        self._originals.give_up(operation)
        both = self._room_for_both(per_sample, columns.shape[1])
        self._matrix(per_sample, lambda a, b: torch.mm(b, columns, out=a), both, x)
        self._matrix(per_sample, lambda a, b: gated(a, b, name, bias), out, both)

    def _room_for_both(self, per_sample: bool, width: int) -> Tensor:
        """Room for gate and up side by side, which all layers share: [rows, width]."""
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

    def _attend(self, operation: Attend, out: Tensor) -> None:
        resident, params = self._resident, operation.params
        heads, kv_heads, layer = operation.heads, operation.kv_heads, operation.layer
        query, key, value = (
            self._buffers.tensor(view) for view in (operation.query, operation.key, operation.value)
        )
        kind = AttentionKind(heads // kv_heads, params.window)
        if kind not in self.kinds:
            self.kinds.append(kind)
        value_dim = out.shape[1] // heads
        tiles = tiles_of(kind.groups)
        slots = most_slots(self._programs)
        room = [resident.parts(slots, kv_heads, tile, value_dim=value_dim) for tile in tiles]

        def rotate(given: StepInputs[Tensor]) -> None:
            tokens = len(given.ids)
            rotate_and_store(
                query[:tokens],
                key[:tokens],
                value[:tokens],
                operation.query_rotation,
                operation.key_rotation,
                resident.pool.keys[layer],
                resident.pool.values[layer],
                given.rows,
                given.positions,
                resident.block_tables,
                heads=heads,
                kv_heads=kv_heads,
            )

        def attend(given: StepInputs[Tensor]) -> None:
            tokens = len(given.ids)
            for tile, items, merges, parts in zip(
                tiles, given.items[kind], given.merges[kind], room, strict=True
            ):
                paged_attention(
                    _by_head(out[:tokens], heads),
                    _by_head(query[:tokens], heads),
                    resident.pool.keys[layer],
                    resident.pool.values[layer],
                    Pieces(tile, items, merges, *parts),
                    resident.block_tables,
                    scaling=params.scaling,
                    softcap=params.softcap,
                    window=params.window,
                    sinks=params.sinks,
                )

        self._launches += [rotate, attend]

    def _joined(self, weights: tuple[Tensor, ...]) -> Tensor:
        """Matrices one below the other; a copy, unless they lie so or there is only one."""
        first = weights[0]
        storage, expected = first.untyped_storage().data_ptr(), first.data_ptr()
        for weight in weights:
            # The allocator of a GPU often puts separate matrices right behind one another.
            is_part = weight.untyped_storage().data_ptr() == storage
            if not is_part or weight.data_ptr() != expected or not weight.is_contiguous():
                return first if len(weights) == 1 else torch.cat(weights)
            expected += weight.nbytes
        return first.as_strided((sum(map(len, weights)), first.shape[1]), first.stride())


def _by_head(rows: Tensor, heads: int) -> Tensor:
    return rows.view(len(rows), heads, rows.shape[1] // heads)


def _product(out: Tensor, x: Tensor, columns: Tensor) -> None:
    """x columns, in float32 if `out` is."""
    if out.dtype == x.dtype:
        torch.mm(x, columns, out=out)
    elif x.device.type == "cuda":
        torch.ops.aten.mm.dtype_out(x, columns, out.dtype, out=out)
    else:
        out.copy_(torch.mm(x, columns))


def _run_module(module: nn.Module, out: Tensor, x: Tensor) -> None:
    output: Any = module(x[None])
    out.copy_((output[0] if isinstance(output, tuple) else output)[0])
