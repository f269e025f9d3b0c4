"""read: determines what the calls of a recorded pass compute, by trying candidates.

No model's or module's name matters here. The matrix that a tensor shows follows from its place in
memory; what a module computes, or how a query was rotated, is guessed from its parameters and
accepted if the guess reproduces the recorded numbers.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from engine.model.files.compact import CompactWeights
from engine.model.program.activations import ACTIVATIONS
from engine.model.program.agree import agree
from engine.model.program.capture import (
    NUM_SAMPLES,
    NUM_TOKENS,
    AttentionCall,
    Call,
    Capture,
    KernelCall,
    Site,
    tensors_in,
)
from engine.model.program.contents import Contents
from engine.model.program.experts import are_experts, read_experts
from engine.model.program.graph import Graph, Operation, Value, View
from engine.model.program.guess import guess, guess_gated_norm
from engine.model.program.layout import axes_of, columns_of
from engine.model.program.lookup import Lookups
from engine.model.program.opaque import Opaque, Replays
from engine.model.program.operations.attend import Attend
from engine.model.program.operations.elementwise import Beside, Elementwise
from engine.model.program.operations.embed import Embed
from engine.model.program.operations.experts import Experts
from engine.model.program.operations.gather import Gather
from engine.model.program.operations.linear import Linear, join
from engine.model.program.operations.norm import HeadNorm, Norm
from engine.model.program.operations.per_head import PerHead
from engine.model.program.provenance import CASTS, Provenance, address_of
from engine.model.program.recurrence import read_convolution, read_recurrence
from engine.model.program.rotation import Rotation, Rotations
from engine.model.program.unreadable import UnreadableError, unreadable

# Functions that only move, copy or cast numbers.
_MOVE = ("view", "reshape", "flatten", "unflatten", "transpose", "permute", "unsqueeze", "squeeze")
_COPY = ("contiguous", "clone", "dropout")
_SAME = frozenset((*_MOVE, *_COPY, *CASTS))
_ADD = frozenset(("add", "__add__", "__radd__"))
_MULTIPLY = frozenset(("mul", "multiply", "__mul__", "__rmul__"))
_DIVIDE = frozenset(("div", "divide", "true_divide", "__truediv__"))
_JOIN = frozenset(("cat", "concat", "concatenate"))
_PICK = frozenset(("__getitem__", "index_select"))
_ACTIVATE = frozenset(("silu", "gelu", "relu", "tanh", "sigmoid", "softplus"))


def read(
    recorded: Capture,
    opaque: frozenset[type[nn.Module]],
    sites: AbstractSet[Site],
    max_positions: int,
    with_experts: bool = True,
    compact: CompactWeights | None = None,
) -> Graph:
    """Read the operations that lead to the logits.

    Args:
        opaque: classes of modules to repeat unchanged.
        sites: calls to repeat unchanged where no kernel computes them.
        max_positions: length of the tables of rotations.
        with_experts: whether experts can be operations; else they are unreadable.
        compact: the parameters that have numbers only during use, if any.

    Raises:
        UnreadableError: our kernels do not compute some call on the way.
    """
    return _Reader(recorded, opaque, sites, max_positions, with_experts, compact).read()


class _Reader:
    def __init__(
        self,
        recorded: Capture,
        opaque: frozenset[type[nn.Module]],
        sites: AbstractSet[Site],
        max_positions: int,
        with_experts: bool,
        compact: CompactWeights | None,
    ) -> None:
        self._recorded = recorded
        self._compact = compact or CompactWeights()
        self._opaque = opaque
        self._sites = sites
        self._with_experts = with_experts
        self._contents = Contents(one for call in recorded.calls for one in call.changed)
        self._provenance = Provenance()
        self._rotations = Rotations(self._provenance, recorded.position_ids, max_positions)
        # The layer that first used some keys and values, by their memory.
        self._stored: dict[Hashable, int] = {}
        # The rotations of latents' queries and keys, by value.
        self._turns: dict[int, Rotation | None] = {}
        self._lookups = Lookups(recorded)
        # Tensors that depend on the step; all others are constants.
        self._varying = {
            address_of(tensor)
            for tensor in (recorded.input_ids, recorded.position_ids, recorded.last_tokens)
        }
        self._replays = Replays(recorded, self._varying.__contains__)

    def read(self) -> Graph:
        for call in self._recorded.calls:
            self._take(call)
        logits = self._provenance.view(self._recorded.logits)
        if not logits.is_whole:
            raise UnreadableError("the logits are not one matrix")
        value = logits.value if logits.value.per_sample else self._sampled(logits)
        operations = _needed(self._provenance.operations, value)
        return Graph(operations, value, self._lookups.common())

    def _sampled(self, logits: View) -> Value:
        """The logits of the tokens that sample, if a model computes those of all tokens: rows are
        selected before the product.
        """
        head = self._provenance.maker(logits)
        if not isinstance(head, Linear):
            raise UnreadableError("the logits of all tokens are not a product")
        last = self._recorded.last_tokens
        x = head.x.reference[last].contiguous()
        picked = Gather(Value(x, per_sample=True), head.x)
        rows = View(picked.out, 0, picked.out.width)
        out = Value(logits.reference[last].contiguous(), per_sample=True)
        self._provenance.operations += [picked, Linear(out, rows, head.weights, head.biases)]
        return out

    def _take(self, call: Call) -> None:
        """Read a call, or record why it is unreadable, because it may turn out not to matter."""
        self._replays.pass_by(call, self._provenance.values)
        fresh = {
            address: tensor
            for tensor in tensors_in(call.output)
            if (address := address_of(tensor)) not in self._provenance.makers
        }
        changed = {address_of(one.tensor): one.tensor for one in call.changed}
        self._contents.pass_by(call.changed)
        for address in fresh:
            self._provenance.makers[address] = call
        inputs = call.inputs
        given = {address_of(tensor) for tensor in inputs}
        if isinstance(call.target, AttentionCall) or given & self._varying:
            self._varying |= {*fresh, *changed}
        made = {address: tensor for address, tensor in fresh.items() if address not in given}
        made |= changed
        if not made:
            return
        try:
            address, tensor = next(iter(made.items()))
            # Experts are read together with their router, which is beside them.
            beside = call.scope[-2:-1] if are_experts(inputs) else ()
            with self._compact.computing((call.target, *beside), call.args, inputs):
                operations = self._read_call(call, tensor)
            self._provenance.operations += operations
            # Nothing reads the content from before a change any more: later readers see this one.
            self._provenance.values[address] = operations[-1].out
            self._provenance.makers[address] = call
            rest = list(made)[1:]
            cause = unreadable(call, "gives more than one tensor")
        except UnreadableError as error:
            # Its frames keep this reader, and through it weights, until the collector runs.
            error.__traceback__ = error.__context__ = None
            rest, cause = list(made), error
        if rest and call.site in self._sites:
            try:
                self._repeat(call, made)
                return
            except UnreadableError as error:
                error.__traceback__ = error.__context__ = None
                rest = list(made)
                cause = error if error.call else unreadable(call, f"is not repeated: {error}")
        for address in rest:
            self._provenance.values.pop(address, None)
            self._provenance.failures[address] = cause

    def _repeat(self, call: Call, made: Mapping[int, Tensor]) -> None:
        """Leave a call to torch. Results that are no matrices are computed with what reads them.

        Raises:
            UnreadableError: it cannot be repeated on other rows.
        """
        changed = {address_of(one.tensor) for one in call.changed}
        outs: dict[int, tuple[Tensor, Value]] = {}
        for address, tensor in made.items():
            old = self._provenance.values.get(address)
            failure = self._provenance.failures.get(address)
            if address in changed and old is None and failure is not None and failure.call:
                raise failure
            try:
                whole = tensor
                if old is not None and address in changed:
                    before = old.reference
                    sides, first = (before.shape, before.stride()), int(before.storage_offset())
                    whole = tensor.as_strided(*sides, first)
                value = self._value(whole)
                if any(value.per_sample != other.per_sample for _, other in outs.values()):
                    raise UnreadableError("it gives rows that sample beside others")
                outs[address] = tensor, value
            except UnreadableError:
                self._provenance.values.pop(address, None)
                self._provenance.failures[address] = UnreadableError("it reads what is no matrix")
        if not outs:
            return
        repeated = self._replay(call, list(outs.values()))
        self._provenance.operations.append(repeated)
        column = 0
        for address, (_, value) in outs.items():
            if value is not repeated.out:
                view = View(repeated.out, column, value.width)
                self._provenance.operations.append(Elementwise(value, view))
            column += value.width
            self._provenance.values[address] = value

    def _replay(self, call: Call, outs: Sequence[tuple[Tensor, Value]]) -> Opaque:
        """See `Replays.replay`."""
        made = self._replays.replay(call, outs, self._provenance.failures)
        if any(self._compact.of(one) is not None for one in made.replay.constants):
            raise UnreadableError("it reads packed weights")
        return made

    def _value(self, tensor: Tensor) -> Value:
        """A new value for a tensor with a row for each token or sample, in any order of axes."""
        for rows, per_sample in ((NUM_TOKENS, False), (NUM_SAMPLES, True)):
            if tensor.numel() % rows == 0 and tensor.is_floating_point():
                width = tensor.numel() // rows
                axes = axes_of(tensor, rows, width)
                if axes is not None and bool((columns_of(axes).bincount() == 1).all()):
                    memory = self._contents.of(tensor)
                    return Value(memory.as_strided((rows, width), (width, 1)), per_sample)
        raise UnreadableError("a tensor has no row for each token")

    def _read_call(self, call: Call, output: Tensor) -> list[Any]:
        try:
            out = self._value(output)
            if any(one.before is None for one in call.changed):
                raise UnreadableError("it changes a value in place")
            if call.changed and not self._provenance.shows_whole(output):
                raise UnreadableError("it changes a part of a value")
            if isinstance(call.target, AttentionCall):
                return [self._attend(call.target, out)]
            if isinstance(call.target, KernelCall):
                if call.target.function in ("join", "absorb", "release"):
                    return [self._expand(call.target, out)]
                return [self._kernel(call.target, out)]
            if isinstance(call.target, nn.Module):
                return self._module(call, call.target, output, out)
            if call.name == "embedding" and len(call.args) > 1:  # within a class that does more
                ids, weight = call.args[:2]
                return self._embed(call, ids, weight, out)
            return [self._function(call, output, out)]
        except UnreadableError as error:
            if error.scope:
                raise
            raise unreadable(call, f"is not read: {error}") from None

    # Functions

    def _function(self, call: Call, output: Tensor, out: Value) -> Operation:
        name = call.function
        # A single number is a factor, whatever its axes.
        tensors = [t for t in call.inputs if t.numel() > 1]
        if name in _SAME:
            return Elementwise(out, self._provenance.like(call.args[0], output))
        if name in _JOIN:
            return join(call.args[0], self._provenance, out)
        if name in _PICK:
            return self._gather(call.args[0], out)
        if name in _ACTIVATE:
            if call.kwargs.get("approximate") == "tanh":
                name = "gelu_tanh"
            x = self._provenance.like(tensors[0], output)
            # It may have other arguments, such as the steepness of a softplus.
            if not agree(ACTIVATIONS[name](x.reference.double()), out.reference):
                raise UnreadableError("our kernels do not take its arguments")
            return Elementwise(out, x, activation=name)
        if call.kwargs or len(call.args) != 2:
            raise UnreadableError("our kernels do not take its arguments")
        if name in _MULTIPLY | _DIVIDE and len(tensors) == 1:
            first, second = call.args
            factor = second if first is tensors[0] else first
            if isinstance(factor, Tensor) and address_of(factor) in self._varying:
                raise UnreadableError("its factor depends on the tokens")
            if name in _DIVIDE and factor is first:
                raise UnreadableError("it divides by a matrix")
            alpha = float(factor) if name in _MULTIPLY else 1 / float(factor)
            return Elementwise(out, self._provenance.like(tensors[0], output), alpha=alpha)
        if name in _ADD | _MULTIPLY and len(tensors) == 2:
            combine = "add" if name in _ADD else "multiply"
            first, second = tensors
            if first.numel() < second.numel():
                first, second = second, first
            x = self._provenance.like(first, output)
            y: View | Tensor
            row = self._row(second, output, x)
            if row is not None:
                y = row
            elif second.numel() < first.numel():
                y = self._spread(second, x, combine, out)
            else:
                y = self._provenance.like(second, output)
            return Elementwise(out, x, combine, y)
        raise UnreadableError("none of our kernels does it")

    def _row(self, tensor: Tensor, output: Tensor, x: View) -> Tensor | None:
        """A constant as one number for each column, if it is the same for all rows; else None.

        Args:
            output: what it gives together with x.
        """
        sides = (1,) * (output.ndim - tensor.ndim) + tuple(tensor.shape)
        of_rows = (at for at, size in enumerate(output.shape) if size % len(x.reference) == 0)
        axis = next(of_rows, None)
        if axis is None or sides[axis] > 1 or address_of(tensor) in self._varying:
            return None
        row = tensor.detach().float().reshape(sides).expand(output.shape).select(axis, 0).flatten()
        return row if len(row) == x.columns else None

    def _spread(self, tensor: Tensor, x: View, combine: str, out: Value) -> View:
        """The view that a tensor shows, if each of its columns serves adjacent ones of x."""
        y = self._provenance.view(tensor)
        if x.columns % y.columns == 0:
            each = y.reference.double().repeat_interleave(x.columns // y.columns, dim=1)
            function = torch.add if combine == "add" else torch.mul
            if agree(function(x.reference.double(), each), out.reference):
                return y
        raise UnreadableError("its tensors have different shapes")

    def _gather(self, tensor: Tensor, out: Value) -> Gather:
        x = self._provenance.view(tensor)
        if out.per_sample and not x.value.per_sample and x.columns == out.width:
            rows = x.reference[self._recorded.last_tokens]
            if torch.equal(rows, out.reference):
                return Gather(out, x)
        raise UnreadableError("it picks other rows than those that sample")

    # Modules

    def _module(self, call: Call, module: nn.Module, output: Tensor, out: Value) -> list[Operation]:
        inputs = call.inputs
        if not inputs:
            raise UnreadableError("it is given no tensor")
        if type(module) in self._opaque:
            return [self._replay(call, [(output, out)])]
        if self._with_experts and are_experts(inputs):
            made = self._provenance.operations
            routings = (one.routing for one in made if isinstance(one, Experts))
            return read_experts(module, inputs, out, self._provenance, next(routings, None))
        weight = getattr(module, "weight", None)
        ids = self._ids(inputs)
        if isinstance(weight, Tensor) and weight.ndim == 2 and ids is not None:
            return self._embed(call, ids, weight, out)
        views, last = [self._provenance.view(one) for one in inputs], inputs[0].shape[-1]
        found = guess(module, views[0], out, last) if len(views) == 1 else None
        if found is not None:
            return [found]
        if len(views) == 2 and (both := guess_gated_norm(module, views[0], views[1], out, last)):
            return both
        raise UnreadableError("it computes none of what was tried")

    def _ids(self, inputs: list[Tensor]) -> Tensor | None:
        """Integers that may look up rows, if the other inputs are the same in each step."""
        ids = next((one for one in inputs if not one.is_floating_point()), None)
        others = (one for one in inputs if one is not ids)
        return None if any(address_of(one) in self._varying for one in others) else ids

    def _embed(self, call: Call, given: Tensor, weight: Tensor, out: Value) -> list[Operation]:
        ids = given.flatten()
        tokens, positions = self._recorded.input_ids, self._recorded.position_ids
        table = weight.detach()
        if len(ids) != len(tokens):
            raise UnreadableError("it looks up neither tokens nor positions")
        by_position = not torch.equal(ids, tokens)
        if by_position:
            table = table[int(ids[0] - positions[0]) :]
            if not torch.equal(ids - ids[0], positions):
                raise UnreadableError("it looks up neither tokens nor positions")
        if not by_position:
            self._lookups.add(given, call)
        if by_position and not agree(table[:1], out.reference[:1]):
            # A module may add an offset itself (OPT).
            table = table[int((table.float() - out.reference[0].float()).norm(dim=1).argmin()) :]
            if len(table) <= int(positions[-1]):
                raise UnreadableError("it has no row for each position")
        rows = table[positions if by_position else tokens].double()
        scale = float((rows * out.reference).sum() / rows.square().sum())
        if not agree(rows * scale, out.reference):
            raise UnreadableError("it is not a table of rows")
        if abs(scale - 1) < 1e-6:
            return [Embed(out, table, by_position)]
        inner = Value(rows.to(out.reference.dtype), per_sample=False)
        return [
            Embed(inner, table, by_position),
            Elementwise(out, View(inner, 0, inner.width), alpha=scale),
        ]

    # Attention and states

    def _kernel(self, call: KernelCall, out: Value) -> Operation:
        found = read_convolution(call.arguments, self._provenance, out) or read_recurrence(
            call.arguments, self._provenance, out
        )
        if found is None:
            raise UnreadableError("it computes none of what was tried")
        return found

    def _expand(self, call: KernelCall, out: Value) -> Operation:
        """The operations on latents around attention. Queries and keys are rotated at attention:
        here they are read before the model's rotation.
        """
        expansion, given = call.arguments["expansion"], call.arguments["given"]
        size = expansion.keys.shape[2]
        if call.function == "release":
            return PerHead(out, self._provenance.view(given[0]), expansion.values)
        if call.function == "join":
            content = self._provenance.view(given[0])
            position, rotation = self._rotations.of(given[1][0].transpose(0, 1))
            joined = torch.cat((content.reference, position.reference), dim=1)
            made: Operation = Beside(Value(joined, per_sample=False), content, position)
        else:
            x, rotation = self._rotations.of(given[0], expansion.keys.shape[1])
            each = x.reference.reshape(given[0].shape)
            absorbed = expansion.absorb(each).flatten(1)
            made = PerHead(
                Value(absorbed, per_sample=False), x, expansion.keys.transpose(1, 2).contiguous()
            )
        self._turns[id(made.out)] = rotation and replace(rotation, begin=size)
        return made

    def _turned(self, tensor: Tensor) -> tuple[View, Rotation | None]:
        """As `Rotations.of`, also for queries and keys of latents."""
        value = self._provenance.values.get(address_of(tensor))
        if value is not None and id(value) in self._turns:
            return View(value, 0, value.width), self._turns[id(value)]
        return self._rotations.of(tensor)

    def _normed(self, tensor: Tensor) -> tuple[View, Rotation | None, HeadNorm | None]:
        """The source of a query or key before its rotation and optional norm, with these."""
        try:
            return *self._turned(tensor), None
        except UnreadableError:
            call = self._provenance.makers.get(address_of(tensor))
            given = [] if call is None else call.inputs
            if call is None or not isinstance(call.target, nn.Module) or len(given) != 1:
                raise
            # Its layout is that of the norm's result.
            rotated = given[0].as_strided(tensor.shape, tensor.stride(), given[0].storage_offset())
            rows = [Value(one.reshape(NUM_TOKENS, -1), False) for one in (rotated, tensor)]
            size = tensor.shape[-1]
            found = guess(call.target, View(rows[0], 0, rows[0].width), rows[1], size)
            alike = given[0].stride() == call.output.stride()
            if not (alike and isinstance(found, Norm) and rows[0].width == size * found.groups):
                raise
            view, rotation = self._turned(rotated)
            return view, rotation, HeadNorm(found.weight, found.bias, found.eps, found.center)

    def _attend(self, call: AttentionCall, out: Value) -> Attend:
        query, query_rotation, query_norm = self._normed(call.query)
        given = tuple(
            (address_of(t), t.storage_offset(), t.stride()) for t in (call.key, call.value)
        )
        layer = self._stored.setdefault(given, call.layer)
        key = value = key_rotation = key_norm = None
        rotated = [call.query]
        if layer == call.layer:
            key, key_rotation, key_norm = self._normed(call.key)
            if id(key.value) not in self._turns:
                value = self._provenance.view(call.value)
            rotated.append(call.key)
        sinks = call.params.sinks
        if sinks is not None:
            sinks = sinks.detach().float().contiguous()
        return Attend(
            out,
            layer,
            query,
            key,
            value,
            call.query.shape[1],
            call.key.shape[1],
            query_rotation,
            key_rotation,
            tuple(t.reshape(NUM_TOKENS, -1) for t in rotated),
            replace(call.params, sinks=sinks),
            query_norm,
            key_norm,
        )


def _needed(operations: list[Operation], logits: Value) -> list[Operation]:
    """The operations that lead to the logits."""
    wanted = {id(logits)}
    kept = []
    for operation in reversed(operations):
        if id(operation.out) in wanted:
            kept.append(operation)
            wanted |= {id(view.value) for view in operation.reads()}
    return kept[::-1]
