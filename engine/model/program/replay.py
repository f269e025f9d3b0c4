"""Replay: recorded calls that torch repeats, unchanged, on the rows of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# The positions of a step's tokens, as an input of one column.
POSITIONS = -1


@dataclass(frozen=True, slots=True)
class Shown:
    """Where a recorded tensor's numbers lie in the rows of an input.

    Attributes:
        at: index of the input, or `POSITIONS`.
        axis: the axis of tokens, which has `inner` numbers of each of them.
        strides: of all axes; that of tokens follows from the rows.
    """

    at: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    axis: int
    inner: int
    offset: int

    def of(self, matrix: Tensor) -> Tensor:
        """The same tensor of other rows."""
        if self.inner > 1:
            matrix = matrix.contiguous()
        shape, strides = list(self.shape), list(self.strides)
        shape[self.axis] = len(matrix) * self.inner
        strides[self.axis] = matrix.stride(0) // self.inner
        return matrix.as_strided(shape, strides, matrix.storage_offset() + self.offset)


@dataclass(frozen=True, slots=True)
class Made:
    """The tensor that an earlier call of the replay made."""

    key: int


class _Rows:
    """The number of rows, in place of the recorded one."""


ROWS = _Rows()


@dataclass(frozen=True, slots=True)
class Step:
    """A call. `args` and `kwargs` hold `Shown`, `Made` and `ROWS` for what depends on the step.

    Attributes:
        output: its output, with a key in place of each tensor.
    """

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Any


@dataclass(frozen=True, slots=True)
class Result:
    """Columns of the output: those of a tensor, or of an input that calls have changed.

    Attributes:
        columns: the position in a row of each of the tensor's columns; None if they are in order.
    """

    tensor: Made | Shown
    axis: int
    inner: int
    columns: Tensor | None

    def rows(self, tensor: Tensor, count: int) -> Tensor:
        """[count, columns]."""
        if self.inner > 1:
            shape = tensor.shape
            sides = count, self.inner
            tensor = tensor.reshape(*shape[: self.axis], *sides, *shape[self.axis + 1 :])
        rows = tensor.movedim(self.axis, 0).reshape(count, -1)
        if self.columns is None:
            return rows
        ordered = torch.empty_like(rows)
        ordered[:, self.columns] = rows
        return ordered


class Replay:
    """Calls in order.

    Attributes:
        modules: the modules that are called.
        constants: the tensors that are the same in each step, such as parameters.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        results: Sequence[Result],
        dtypes: Sequence[torch.dtype],
        constants: Sequence[Tensor],
        changes: bool,
    ) -> None:
        self.modules = tuple(one.target for one in steps if isinstance(one.target, nn.Module))
        self.constants = tuple(constants)
        self._steps = steps
        self._results = results
        self._dtypes = dtypes
        self._changes = changes

    def __call__(self, count: int, given: Sequence[Tensor], positions: Tensor) -> Tensor:
        """Repeat the calls.

        Args:
            count: number of rows.
            given: [count, columns] of each input.
            positions: [count] int64, of tokens.

        Returns:
            [count, columns].
        """
        # A program may use another type than its model.
        matrices = {
            at: one.to(dtype, copy=self._changes)
            for at, (one, dtype) in enumerate(zip(given, self._dtypes, strict=True))
        } | {POSITIONS: positions[:, None]}
        made: dict[int, Tensor] = {}

        def fill(value: Any) -> Any:
            match value:
                case Shown():
                    return value.of(matrices[value.at])
                case Made():
                    return made[value.key]
                case _Rows():
                    return count
            return each_part(fill, value)

        for step in self._steps:
            named = {name: fill(value) for name, value in step.kwargs.items()}
            made.update(_keyed(step.output, step.target(*map(fill, step.args), **named)))
        parts = [one.rows(fill(one.tensor), count) for one in self._results]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def keys_in(output: Any) -> Any:
    """The output of a recorded call, with a key in place of each tensor."""
    match output:
        case Tensor():
            return Made(id(output))
        case dict():
            return {name: keys_in(one) for name, one in output.items()}
        case tuple() | list():
            return tuple(map(keys_in, output))
    return None


def _keyed(keys: Any, output: Any) -> Iterator[tuple[int, Tensor]]:
    """The tensors of an output, by key. A module with states leaves out those that have no rows."""
    match keys:
        case Made() if isinstance(output, Tensor):
            yield keys.key, output
        case dict() if isinstance(output, dict):
            for name in keys.keys() & output.keys():
                yield from _keyed(keys[name], output[name])
        case tuple() if isinstance(output, (tuple, list)):
            for key, one in zip(keys, output, strict=True):
                yield from _keyed(key, one)


def each_part(change: Callable[[Any], Any], value: Any) -> Any:
    """A value with a change of each of its parts."""
    match value:
        case tuple() if hasattr(value, "_fields"):
            return type(value)(*map(change, value))
        case list():
            return list(map(change, value))
        case tuple():
            return tuple(map(change, value))
        case dict() if type(value) is dict:
            return {key: change(one) for key, one in value.items()}
        case slice():
            return slice(*map(change, (value.start, value.stop, value.step)))
    return value
