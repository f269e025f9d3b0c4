"""read: determines what the calls of a recorded pass compute, by trying the readers of operations.

No model's or module's name matters here. The matrix that a tensor shows follows from its place in
memory; what a module computes, or how a query was rotated, is guessed from its parameters and
accepted if the guess reproduces the recorded numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from torch import Tensor, nn

from engine.model.files.compact import CompactWeights
from engine.model.program import operations
from engine.model.program.capture import (
    NUM_SAMPLES,
    NUM_TOKENS,
    AttentionCall,
    Call,
    Capture,
    Site,
    tensors_in,
)
from engine.model.program.graph import Graph, Operation, Value, View
from engine.model.program.layout import axes_of, columns_of
from engine.model.program.opaque import Opaque, Replays
from engine.model.program.operations.elementwise import Elementwise
from engine.model.program.operations.embed import common_lookup
from engine.model.program.operations.experts import are_experts
from engine.model.program.operations.gather import Gather
from engine.model.program.operations.linear import Linear
from engine.model.program.provenance import address_of
from engine.model.program.reading import Reading
from engine.model.program.unreadable import UnreadableError, unreadable
from engine.model.program.writes import Change


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
        self._contents = _Contents(one for call in recorded.calls for one in call.changed)
        self._reading = Reading(recorded, max_positions, with_experts)
        self._provenance = self._reading.provenance
        self._varying = self._reading.varying
        self._replays = Replays(recorded, self._varying.__contains__)

    def read(self) -> Graph:
        for call in self._recorded.calls:
            self._take(call)
        logits = self._provenance.view(self._recorded.logits)
        if not logits.is_whole:
            raise UnreadableError("the logits are not one matrix")
        value = logits.value if logits.value.per_sample else self._sampled(logits)
        needed = _needed(self._provenance.operations, value)
        return Graph(needed, value, common_lookup(self._reading.looked_up))

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
                found = self._read_call(call, tensor)
            self._provenance.operations += found
            # Nothing reads the content from before a change any more: later readers see this one.
            self._provenance.values[address] = found[-1].out
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

    def _read_call(self, call: Call, output: Tensor) -> list[Operation]:
        try:
            out = self._value(output)
            if any(one.before is None for one in call.changed):
                raise UnreadableError("it changes a value in place")
            if call.changed and not self._provenance.shows_whole(output):
                raise UnreadableError("it changes a part of a value")
            if isinstance(call.target, nn.Module):
                if not call.inputs:
                    raise UnreadableError("it is given no tensor")
                if type(call.target) in self._opaque:
                    return [self._replay(call, [(output, out)])]
            for reader in operations.READERS:
                found = reader(self._reading, call, output, out)
                if found is not None:
                    return found
            if not call.function:
                raise UnreadableError("it computes none of what was tried")
            if call.kwargs or len(call.args) != 2:
                raise UnreadableError("our kernels do not take its arguments")
            raise UnreadableError("none of our kernels does it")
        except UnreadableError as error:
            if error.scope:
                raise
            raise unreadable(call, f"is not read: {error}") from None


class _Contents:
    """The numbers of tensors at one point of a recorded pass, which advances from call to call.

    Args:
        changes: changes of the whole pass, in order.
    """

    def __init__(self, changes: Iterable[Change]) -> None:
        self._before: dict[int, deque[Tensor | None]] = {}
        for change in changes:
            found = self._before.setdefault(address_of(change.tensor), deque())
            found.append(change.before)

    def pass_by(self, changes: Iterable[Change]) -> None:
        """Advance past a call that made these changes, the next ones of the pass."""
        for change in changes:
            self._before[address_of(change.tensor)].popleft()

    def of(self, tensor: Tensor) -> Tensor:
        """A tensor as it is at this point.

        Raises:
            UnreadableError: a module changes it in place later, so that its content is lost.
        """
        before = self._before.get(address_of(tensor))
        if not before:
            return tensor
        if before[0] is None:
            raise UnreadableError("a module changes its result in place")
        return before[0].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _needed(operations: list[Operation], logits: Value) -> list[Operation]:
    """The operations that lead to the logits."""
    wanted = {id(logits)}
    kept = []
    for operation in reversed(operations):
        if id(operation.out) in wanted:
            kept.append(operation)
            wanted |= {id(view.value) for view in operation.reads()}
    return kept[::-1]
