"""Opaque: recorded calls as an operation that torch repeats on the rows of a step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from engine.model.program.agree import agree
from engine.model.program.capture import AttentionCall, Call, Capture, KernelCall, tensors_in
from engine.model.program.graph import Operation, Value, View
from engine.model.program.layout import axes_of, columns_of
from engine.model.program.provenance import address_of
from engine.model.program.replay import (
    POSITIONS,
    ROWS,
    Made,
    Replay,
    Result,
    Shown,
    Step,
    each_part,
    keys_in,
)
from engine.model.program.unreadable import UnreadableError
from engine.model.program.weights import Weight
from engine.model.program.writes import out_of_place


@dataclass(eq=False)
class Opaque(Operation):
    """Repeats calls of the model unchanged, in torch.

    Attributes:
        name: the called module's class, or the function.
    """

    in_torch: ClassVar[bool] = True
    out: Value
    name: str
    inputs: tuple[View, ...]
    replay: Replay

    @property
    def kind(self) -> str:
        """See `Operation.kind`."""
        return self.name

    def matrices(self) -> tuple[Weight, ...]:
        """See `Operation.matrices`."""
        of_modules = (one for module in self.replay.modules for one in module.parameters())
        return (*self.replay.constants, *of_modules)


class Replays:
    """Makes replays of a recorded pass's calls.

    Args:
        varies: whether the memory at an address depends on the step.
    """

    def __init__(self, recorded: Capture, varies: Callable[[int], bool]) -> None:
        self._varies = varies
        # What the pass cannot show of other ids, or of other rows that sample.
        self._hidden = {address_of(recorded.input_ids), address_of(recorded.last_tokens)}
        self._recorded = recorded
        self._order: dict[int, int] = {}
        self._makers: dict[int, list[Call]] = {}
        self._changers: dict[int, list[Call]] = {}
        self._values: dict[int, dict[int, Value]] = {}

    def pass_by(self, call: Call, values: Mapping[int, Value]) -> None:
        """Note a call, and the values of its inputs before it.

        Args:
            values: all values at this point, by address.
        """
        self._order[id(call)] = len(self._order)
        for tensor in tensors_in(call.output):
            self._makers.setdefault(id(tensor), []).append(call)
        for change in call.changed:
            self._changers.setdefault(address_of(change.tensor), []).append(call)
        addresses = map(address_of, call.inputs)
        self._values[id(call)] = {at: values[at] for at in addresses if at in values}

    def replay(
        self,
        call: Call,
        outs: Sequence[tuple[Tensor, Value]],
        failures: Mapping[int, UnreadableError],
    ) -> Opaque:
        """An operation that repeats a call, and those before it whose results are no values.

        Args:
            outs: tensors that the call makes or changes, with the values that they are to be. The
                operation's result has the columns of all.
            failures: why earlier results are no values, by address.

        Raises:
            UnreadableError: its rows are not independent of each other, or it cannot be repeated.
        """
        first = out = outs[0][1]
        if len(outs) > 1:
            out = Value(torch.cat([one.reference for _, one in outs], 1), first.per_sample)
        calls = self._needed(call, failures)
        maker = _Maker(self, calls, len(first.reference), first.per_sample)
        made = Opaque(out, out_of_place(call.name).strip("_"), *maker.replay(outs))
        if isinstance(call.target, nn.Module):
            # A module may keep states, or choose other experts by rounding. The gate compares it in
            # all situations (`engine.model.checks.gate`).
            self._check_inputs(call, calls[:-1], failures)
        elif not self._is_by_row(made.inputs, made.replay, out.reference):
            raise UnreadableError("its rows depend on each other")
        return made

    def _check_inputs(
        self, call: Call, calls: Sequence[Call], failures: Mapping[int, UnreadableError]
    ) -> None:
        """Check the inputs that earlier calls of a replay make.

        Raises:
            UnreadableError: the rows of one depend on each other.
        """
        rows = len(self._recorded.input_ids)
        for tensor in call.inputs:
            if self.source(tensor, call) is None and rows in tensor.shape:
                recorded = tensor.movedim(tensor.shape.index(rows), 0).reshape(rows, -1)
                maker = _Maker(self, calls, rows, per_sample=False)
                if not self._is_by_row(*maker.replay([(tensor, None)]), recorded):
                    raise failures.get(address_of(tensor)) or UnreadableError(
                        "the rows of an input depend on each other"
                    )

    def _needed(self, call: Call, failures: Mapping[int, UnreadableError]) -> list[Call]:
        """A call, and those that made its inputs, in order.

        Raises:
            UnreadableError: an input is made by attention, or by another module, that is not read.
        """
        found: dict[int, Call] = {}
        pending = [call]
        while pending:
            one = pending.pop()
            order = self._order[id(one)]
            if order in found:
                continue
            if isinstance(one.target, AttentionCall | KernelCall):
                (result,) = tensors_in(one.output)[:1]
                raise failures[address_of(result)]
            failure = next(
                filter(None, map(failures.get, map(address_of, tensors_in(one.output)))), None
            )
            if one is not call and failure is not None and not _goes_along(one, call, failure):
                raise failure
            found[order] = one
            for tensor in one.inputs:
                if self.source(tensor, one) is None:
                    both = (
                        *self._makers.get(id(tensor), ()),
                        *self._changers.get(address_of(tensor), ()),
                    )
                    pending += [other for other in both if self._order[id(other)] < order]
        return [found[order] for order in sorted(found)]

    def source(self, tensor: Tensor, call: Call) -> Value | int | Tensor | None:
        """The source of an input's numbers: a value, `POSITIONS`, the tensor itself if it is the
        same in each step, or None if an earlier call made it.

        Raises:
            UnreadableError: it depends on token ids, or on which rows sample.
        """
        address = address_of(tensor)
        value = self._values[id(call)].get(address)
        if value is not None:
            return value
        if address == address_of(self._recorded.position_ids):
            return POSITIONS
        if address in self._hidden:
            raise UnreadableError("it depends on token ids, or on which rows sample")
        # Some that are the same depend on the number of rows.
        rows = len(self._recorded.input_ids)
        if self._varies(address) or (id(tensor) in self._makers and rows in tensor.shape):
            return None
        return tensor

    def _is_by_row(self, inputs: Sequence[View], replay: Replay, recorded: Tensor) -> bool:
        """Whether a replay computes each row by itself.

        Args:
            recorded: its result of all rows.
        """
        count = len(recorded)
        for order in (torch.arange(count).flip(0)[::2], torch.tensor([count // 2])):
            rows = order.to(recorded.device)
            positions = self._recorded.position_ids[rows]
            try:
                got = replay(len(rows), [one.reference[rows] for one in inputs], positions)
            except Exception:  # a function refuses another number of rows, in its own way
                return False
            if got.shape != recorded[rows].shape or not agree(got, recorded[rows]):
                return False
        return True


class _Maker:
    """Makes one replay.

    Args:
        calls: in order.
        rows: rows of the recorded pass.
    """

    def __init__(
        self, replays: Replays, calls: Sequence[Call], rows: int, per_sample: bool
    ) -> None:
        self._replays = replays
        self._calls = calls
        self._rows = rows
        self._per_sample = per_sample
        self._changes = any(call.changed for call in calls)
        self._made: set[int] = set()
        self._views: dict[View, int] = {}
        # The input that shows the recorded memory at an address.
        self._inputs: dict[int, int] = {}
        self._dtypes: list[torch.dtype] = []
        self._constants: dict[int, Tensor] = {}

    def replay(
        self, outs: Iterable[tuple[Tensor, Value | None]]
    ) -> tuple[tuple[View, ...], Replay]:
        """The inputs, and the calls on them."""
        steps = [self._step(call) for call in self._calls]
        results = [self._result(tensor, value) for tensor, value in outs]
        constants = tuple(self._constants.values())
        made = Replay(steps, results, self._dtypes, constants, self._changes)
        return tuple(self._views), made

    def _step(self, call: Call) -> Step:
        args, kwargs = call.args, dict(call.kwargs)
        if isinstance(call.target, nn.Module):
            args, kwargs = _by_name(call.target, call)

        def template(value: Any) -> Any:
            if isinstance(value, Tensor):
                return self._tensor(value, call)
            if type(value) is int and value == self._rows:
                return ROWS
            return each_part(template, value)

        filled = tuple(map(template, args)), {k: template(value) for k, value in kwargs.items()}
        self._made |= {id(tensor) for tensor in tensors_in(call.output)}
        assert callable(call.target)
        return Step(call.target, *filled, keys_in(call.output))

    def _tensor(self, tensor: Tensor, call: Call) -> Any:
        source = self._replays.source(tensor, call)
        if source is None:
            if id(tensor) not in self._made:
                raise UnreadableError("it is unknown which call made a tensor")
            return Made(id(tensor))
        if isinstance(source, Tensor):
            self._constants[id(source)] = source
            return source
        if isinstance(source, Value):
            if source.per_sample != self._per_sample:
                raise UnreadableError("it reads rows that sample and others")
            return self._shown(tensor, source)
        axis, inner = _token_axis(tensor, self._rows, 1)
        if self._per_sample or tensor.storage_offset() or inner > 1:
            raise UnreadableError("it reads other positions than those of its rows")
        return Shown(source, tuple(tensor.shape), tensor.stride(), axis, 1, 0)

    def _shown(self, tensor: Tensor, value: Value) -> Shown:
        width = value.width
        axis, inner = _token_axis(tensor, self._rows, width)
        first = int(tensor.storage_offset()) - int(value.reference.storage_offset())
        others = (
            (size - 1) * stride
            for at, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True))
            if at != axis
        )
        last = first + sum(others) + (inner - 1) * (width // inner)
        if not 0 <= first <= last < width:
            raise UnreadableError("a tensor leaves out rows")
        view = View(value, first, last + 1 - first)
        if self._changes or inner > 1:
            view = View(value, 0, width)
        else:
            first = 0
        if view not in self._views:
            self._views[view] = len(self._views)
            self._dtypes.append(value.reference.dtype)
        self._inputs[address_of(tensor)] = self._views[view]
        return Shown(self._views[view], tuple(tensor.shape), tensor.stride(), axis, inner, first)

    def _result(self, tensor: Tensor, value: Value | None) -> Result:
        """The columns of a value that a tensor shows, or those of the tensor itself."""
        if value is None:
            return Result(Made(id(tensor)), tensor.shape.index(self._rows), 1, None)
        axes = axes_of(tensor, self._rows, value.width)
        columns = None if axes is None else columns_of(axes)
        if id(tensor) in self._made and columns is not None and len(columns) == value.width:
            axis, inner = _token_axis(tensor, self._rows, value.width)
            in_order = torch.equal(columns, torch.arange(len(columns)))
            return Result(Made(id(tensor)), axis, inner, None if in_order else columns)
        # The calls have changed an input, or a part of one.
        at = self._inputs.get(address_of(tensor))
        if at is None:
            raise UnreadableError("it changes a part of what is no matrix")
        whole = Shown(at, (self._rows, value.width), (value.width, 1), 0, 1, 0)
        return Result(whole, 0, 1, None)


def _token_axis(tensor: Tensor, rows: int, width: int) -> tuple[int, int]:
    """The axis of a tensor that runs over rows of this width, and its numbers for each row.

    Raises:
        UnreadableError: there is none.
    """
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if size and size % rows == 0 and size // rows * stride == width:
            return axis, size // rows
    raise UnreadableError("a tensor has its rows in another order")


def _goes_along(one: Call, call: Call, failure: UnreadableError) -> bool:
    """Whether a call that is not read is repeated with a later one. Otherwise kernels compute it,
    or it becomes an operation by itself once its inputs are values.

    Args:
        failure: why it is not read.
    """
    if failure.call is None:
        return True
    if not isinstance(one.target, nn.Module):
        return call.scope[: len(one.scope)] == one.scope
    around = one.scope[:-1]
    # A router is repeated with its experts.
    cannot = failure.call is one or all(weight.ndim < 2 for weight in one.target.parameters())
    return call.scope[: len(around)] == around and cannot


def _by_name(module: nn.Module, call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a module's call, by name where they have names: a module with states is
    given the cache of ours by name.
    """
    signature = inspect.signature(module.forward)
    kinds = {one.kind for one in signature.parameters.values()}
    if inspect.Parameter.VAR_POSITIONAL in kinds or inspect.Parameter.POSITIONAL_ONLY in kinds:
        return call.args, dict(call.kwargs)
    named: dict[str, Any] = {}
    for name, given in signature.bind(*call.args, **call.kwargs).arguments.items():
        kind = signature.parameters[name].kind
        named |= given if kind is inspect.Parameter.VAR_KEYWORD else {name: given}
    return (), named
