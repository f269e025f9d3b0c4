"""read: finds out what the calls of a recorded pass compute, by trying what they could be.

Nothing here goes by a model's or a module's name. Which matrix a tensor shows follows from where it
lies in memory; what a module computes, or how a query was rotated, is guessed from its parameters
and kept if the guess gives the recorded numbers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from engine.model.program.agree import agree
from engine.model.program.capture import (
    NUM_SAMPLES,
    NUM_TOKENS,
    AttentionCall,
    Call,
    Capture,
    tensors_in,
)
from engine.model.program.graph import (
    Attend,
    Elementwise,
    Embed,
    Gather,
    Graph,
    Opaque,
    Operation,
    Rotation,
    Value,
    View,
    reads,
)
from engine.model.program.guess import guess
from engine.model.program.rotation import conventions, rotate

# What only moves or casts numbers.
_MOVE = ("view", "reshape", "flatten", "unflatten", "transpose", "permute", "unsqueeze", "squeeze")
_CAST = ("contiguous", "clone", "to", "type", "type_as", "float", "bfloat16", "dropout")
_SAME = frozenset((*_MOVE, *_CAST))
_ADD = frozenset(("add", "__add__", "__radd__"))
_MULTIPLY = frozenset(("mul", "multiply", "__mul__", "__rmul__"))
_DIVIDE = frozenset(("div", "divide", "true_divide", "__truediv__"))
_PICK = frozenset(("__getitem__", "index_select"))
_ACTIVATE = frozenset(("silu", "gelu", "relu", "tanh", "sigmoid"))


class UnreadableError(Exception):
    """A call that none of our kernels computes.

    Attributes:
        scope: the modules it was made in.
    """

    def __init__(self, message: str, scope: tuple[nn.Module, ...] = ()) -> None:
        super().__init__(message)
        self.scope = scope


def read(recorded: Capture, opaque: frozenset[type[nn.Module]], max_positions: int) -> Graph:
    """The operations that lead to the logits.

    Args:
        opaque: classes of modules to run as they are.
        max_positions: length of the tables of rotations.

    Raises:
        UnreadableError: some call on the way is none of ours.
    """
    return _Reader(recorded, opaque, max_positions).read()


class _Reader:
    def __init__(
        self, recorded: Capture, opaque: frozenset[type[nn.Module]], max_positions: int
    ) -> None:
        self._recorded = recorded
        self._opaque = opaque
        self._max_positions = max_positions
        self._operations: list[Operation] = []
        self._tables: dict[tuple[int | None, ...], tuple[Tensor, Tensor]] = {}
        # By the address of the memory: what was read, why it was not, and which call made it.
        self._values: dict[int, Value] = {}
        self._failures: dict[int, UnreadableError] = {}
        self._makers: dict[int, Call] = {}
        # What depends on the step; all else is a constant.
        self._varying = {
            _address(tensor)
            for tensor in (recorded.input_ids, recorded.position_ids, recorded.last_tokens)
        }

    def read(self) -> Graph:
        for call in self._recorded.calls:
            self._take(call)
        logits = self.view(self._recorded.logits)
        if not logits.is_whole or not logits.value.per_sample:
            raise UnreadableError("the logits are not one matrix")
        return Graph(_needed(self._operations, logits.value), logits.value)

    def _take(self, call: Call) -> None:
        """Read a call, or note why it cannot be: it may turn out not to matter."""
        fresh = {
            address: tensor
            for tensor in tensors_in(call.output)
            if (address := _address(tensor)) not in self._makers
        }
        for tensor in call.changed:
            self._values.pop(_address(tensor), None)
            self._failures[_address(tensor)] = self._failure(call, "changes a value in place")
        for address in fresh:
            self._makers[address] = call
        given = {_address(tensor) for tensor in tensors_in((call.args, call.kwargs))}
        if isinstance(call.target, AttentionCall) or given & self._varying:
            self._varying |= {_address(tensor) for tensor in (*fresh.values(), *call.changed)}
        made = {address: tensor for address, tensor in fresh.items() if address not in given}
        if not made:
            return
        try:
            address, tensor = next(iter(made.items()))
            operations = self._read_call(call, tensor)
            self._operations += operations
            self._values[address] = operations[-1].out
            rest = list(made)[1:]
            cause = self._failure(call, "gives more than one tensor")
        except UnreadableError as error:
            # Its frames hold this reader, and through it weights, until the collector comes by.
            error.__traceback__ = error.__context__ = None
            rest, cause = list(made), error
        for address in rest:
            self._failures[address] = cause

    def _failure(self, call: Call, what: str) -> UnreadableError:
        where = type(call.scope[-1]).__name__ if call.scope else "the model"
        return UnreadableError(f"{call.name} in {where} {what}", call.scope)

    def view(self, tensor: Tensor) -> View:
        """The columns of a value that a tensor shows."""
        address = _address(tensor)
        value = self._values.get(address)
        if value is None:
            raise self._failures.get(address) or UnreadableError("a constant is used as a matrix")
        width, rows = value.width, len(value.reference)
        axes = [
            (size, stride)
            for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
            if size > 1
        ]
        if (rows, width) not in axes:
            raise UnreadableError("a tensor has its rows in another order")
        axes.remove((rows, width))
        columns = 1
        for size, stride in reversed(axes):
            if stride != columns:
                raise UnreadableError("a tensor has its columns in another order")
            columns *= size
        column = int(tensor.storage_offset()) - int(value.reference.storage_offset())
        if not 0 <= column <= width - columns:
            raise UnreadableError("a tensor leaves out rows")
        return View(value, column, columns)

    def _value(self, tensor: Tensor) -> Value:
        """A new value for a tensor with a row for each token or sample, in any order of axes."""
        for rows, per_sample in ((NUM_TOKENS, False), (NUM_SAMPLES, True)):
            if tensor.numel() % rows == 0 and tensor.is_floating_point():
                width = tensor.numel() // rows
                axes = sorted(
                    (stride, size)
                    for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
                    if size > 1
                )
                dense = all(
                    stride == math.prod(size for _, size in axes[:at])
                    for at, (stride, _) in enumerate(axes)
                )
                if dense and axes and axes[-1] == (width, rows):
                    return Value(tensor.as_strided((rows, width), (width, 1)), per_sample)
        raise UnreadableError("a tensor has no row for each token")

    def _read_call(self, call: Call, output: Tensor) -> list[Any]:
        try:
            out = self._value(output)
            if isinstance(call.target, AttentionCall):
                return [self._attend(call.target, out)]
            if isinstance(call.target, nn.Module):
                return self._module(call, call.target, out)
            return [self._function(call, output, out)]
        except UnreadableError as error:
            if error.scope:
                raise
            raise self._failure(call, f"is not read: {error}") from None

    # Functions

    def _function(self, call: Call, output: Tensor, out: Value) -> Operation:
        tensors = [t for t in tensors_in((call.args, call.kwargs)) if t.ndim]
        if call.name in _SAME:
            return Elementwise(out, self._like(call.args[0], output))
        if call.name in _PICK:
            return self._gather(call.args[0], out)
        if call.name in _ACTIVATE:
            name = "gelu_tanh" if call.kwargs.get("approximate") == "tanh" else call.name
            return Elementwise(out, self._like(tensors[0], output), activation=name)
        if call.kwargs or len(call.args) != 2:
            raise UnreadableError("its arguments are none of ours")
        if call.name in _MULTIPLY | _DIVIDE and len(tensors) == 1:
            first, second = call.args
            factor = second if first is tensors[0] else first
            if isinstance(factor, Tensor) and _address(factor) in self._varying:
                raise UnreadableError("its factor depends on the tokens")
            if call.name in _DIVIDE and factor is first:
                raise UnreadableError("it divides by a matrix")
            alpha = float(factor) if call.name in _MULTIPLY else 1 / float(factor)
            return Elementwise(out, self._like(tensors[0], output), alpha=alpha)
        if call.name in _ADD | _MULTIPLY and len(tensors) == 2:
            combine = "add" if call.name in _ADD else "multiply"
            first, second = tensors
            if first.ndim == 1:
                first, second = second, first
            x = self._like(first, output)
            y: View | Tensor
            if second.shape == (x.columns,) and _address(second) not in self._varying:
                y = second.detach().float().contiguous()
            else:
                y = self._like(second, output)
            return Elementwise(out, x, combine, y)
        raise UnreadableError("none of our kernels does it")

    def _like(self, tensor: Tensor, output: Tensor) -> View:
        """The view that a tensor shows, if it has its numbers where the output has them."""
        view = self.view(tensor)
        if tensor.numel() != output.numel() or not torch.equal(
            _order(tensor, view.value), _order(output, None)
        ):
            raise UnreadableError("its tensors have different layouts")
        return view

    def _gather(self, tensor: Tensor, out: Value) -> Gather:
        x = self.view(tensor)
        if out.per_sample and not x.value.per_sample and x.columns == out.width:
            rows = x.reference[self._recorded.last_tokens]
            if torch.equal(rows, out.reference):
                return Gather(out, x)
        raise UnreadableError("it picks other rows than those that sample")

    # Modules

    def _module(self, call: Call, module: nn.Module, out: Value) -> list[Operation]:
        inputs = tensors_in((call.args, call.kwargs))
        if not inputs:
            raise UnreadableError("it is given no tensor")
        if type(module) in self._opaque:
            if call.kwargs or len(call.args) != 1:
                raise UnreadableError("it is given more than one tensor")
            (x,) = call.args
            result = call.output[0] if isinstance(call.output, tuple) else call.output
            if not (
                isinstance(x, Tensor)
                and isinstance(result, Tensor)
                and x.ndim == result.ndim == 3
                and x.shape[:2] == result.shape[:2]
                and _address(result) == _address(out.reference)
            ):
                raise UnreadableError("it takes or gives no [1, tokens, columns]")
            return [Opaque(out, self.view(x), module)]
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.ndim == 2 and not inputs[0].is_floating_point():
            return self._embed(inputs[0], weight, out)
        found = guess(module, self.view(inputs[0]), out) if len(inputs) == 1 else None
        if found is not None:
            return [found]
        raise UnreadableError("it computes none of what was tried")

    def _embed(self, ids: Tensor, weight: Tensor, out: Value) -> list[Operation]:
        ids = ids.flatten()
        tokens, positions = self._recorded.input_ids, self._recorded.position_ids
        table = weight.detach()
        if len(ids) != len(tokens):
            raise UnreadableError("it looks up neither tokens nor positions")
        by_position = not torch.equal(ids, tokens)
        if by_position:
            table = table[int(ids[0] - positions[0]) :]
            if not torch.equal(ids - ids[0], positions):
                raise UnreadableError("it looks up neither tokens nor positions")
        rows = table[positions if by_position else tokens].double()
        scale = float((rows * out.reference).sum() / rows.square().sum())
        if not agree(rows * scale, out.reference):
            raise UnreadableError("it is no table of rows")
        if abs(scale - 1) < 1e-6:
            return [Embed(out, table, by_position)]
        inner = Value(rows.to(out.reference.dtype), per_sample=False)
        return [
            Embed(inner, table, by_position),
            Elementwise(out, View(inner, 0, inner.width), alpha=scale),
        ]

    # Attention

    def _attend(self, call: AttentionCall, out: Value) -> Attend:
        query, query_rotation = self._rotated(call.query)
        key, key_rotation = self._rotated(call.key)
        value = self.view(call.value)
        rotated = tuple(t.reshape(NUM_TOKENS, -1) for t in (call.query, call.key))
        sinks = call.params.sinks
        if sinks is not None:
            sinks = sinks.detach().float().contiguous()
        return Attend(
            out,
            call.layer,
            query,
            key,
            value,
            call.query.shape[1],
            call.key.shape[1],
            query_rotation,
            key_rotation,
            (rotated[0], rotated[1]),
            replace(call.params, sinks=sinks),
        )

    def _rotated(self, tensor: Tensor) -> tuple[View, Rotation | None]:
        """What was rotated into a query or key, [T, heads, head_dim], and how."""
        if _address(tensor) in self._values:
            return self.view(tensor), None
        sources, makers = self._sources(tensor)
        values = {id(self._values[_address(t)]): self._values[_address(t)] for t in sources}
        if len(values) != 1 or len(makers) != 1:
            raise self._failures[_address(tensor)]
        (value,), (maker,) = values.values(), makers.values()
        column = min(
            int(t.storage_offset() - value.reference.storage_offset()) % value.width
            for t in sources
        )
        heads, dim = tensor.shape[1:]
        view = View(value, column, heads * dim)
        if column + view.columns > value.width:
            raise self._failures[_address(tensor)]
        x = view.reference.reshape(NUM_TOKENS, heads, dim).double()
        recorded = [t.double().reshape(NUM_TOKENS, -1) for t in tensors_in(maker.output)]
        if len(recorded) == 2:
            for pick, interleaved in conventions(recorded[0].shape[1], dim):
                cos, sin = (table[:, pick] for table in recorded)
                if agree(rotate(x, cos, sin, interleaved), tensor):
                    return view, Rotation(*self._tables_of(maker, pick), interleaved)
        failure = self._failures[_address(tensor)]
        if maker.target in failure.scope:  # all but the rotation was read
            raise UnreadableError("a query or key is no rotation by its position")
        raise failure

    def _sources(self, tensor: Tensor) -> tuple[list[Tensor], dict[int, Call]]:
        """What a tensor was computed from: tensors of values that were read, and modules."""
        found: list[Tensor] = []
        makers: dict[int, Call] = {}
        seen: set[int] = set()
        pending = [tensor]
        while pending:
            one = pending.pop()
            address = _address(one)
            if address in self._values:
                found.append(one)
            elif address not in seen and address in self._makers:
                seen.add(address)
                call = self._makers[address]
                if isinstance(call.target, nn.Module):
                    makers[id(call)] = call
                else:
                    # Views of the same memory by other calls do not tell where it came from.
                    pending += tensors_in((call.args, call.kwargs))
        return found, makers

    def _tables_of(self, call: Call, pick: slice) -> tuple[Tensor, Tensor]:
        """Columns of the cosines and sines of all positions, from the module that made those of the
        pass; once for all layers that use it.
        """
        key = id(call), pick.start, pick.stop, pick.step
        if key not in self._tables:
            everywhere = torch.arange(self._max_positions)[None]

            def moved(value: Any) -> Any:
                if isinstance(value, Tensor):
                    if value.is_floating_point():
                        return value.float()  # the tables take its type
                    return everywhere if value.numel() == NUM_TOKENS else value
                return value

            assert isinstance(call.target, nn.Module)
            cos, sin = call.target(
                *map(moved, call.args), **{name: moved(v) for name, v in call.kwargs.items()}
            )
            if cos.numel() // cos.shape[-1] != self._max_positions:
                raise self._failure(call, "gives no row for each position")
            self._tables[key] = (
                cos.flatten(0, -2)[:, pick].float().contiguous(),
                sin.flatten(0, -2)[:, pick].float().contiguous(),
            )
        return self._tables[key]


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _order(tensor: Tensor, value: Value | None) -> Tensor:
    """For each number of a tensor in its logical order, its place in a dense matrix of its rows."""
    rows = len(value.reference) if value is not None else None
    axes = list(zip(tensor.shape, tensor.stride(), strict=True))
    width = tensor.numel() // rows if rows else 0
    place = torch.zeros((), dtype=torch.int64)
    for size, stride in axes:
        step = width if value is not None and (size, stride) == (rows, value.width) else stride
        place = place[..., None] + torch.arange(size) * (step if size > 1 else 0)
    return place.flatten()


def _needed(operations: list[Operation], logits: Value) -> list[Operation]:
    """Those that lead to the logits."""
    wanted = {id(logits)}
    kept = []
    for operation in reversed(operations):
        if id(operation.out) in wanted:
            kept.append(operation)
            wanted |= {id(view.value) for view in reads(operation)}
    return kept[::-1]
