"""Elementwise: an activation, a sum or a product. Beside: two matrices side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from engine.model.program.activations import ACTIVATIONS, guess_activation
from engine.model.program.agree import agree
from engine.model.program.capture import Call, KernelCall
from engine.model.program.graph import Operation, Value, View
from engine.model.program.operations.kerneled import Emitter, Kerneled, Numbers, wide
from engine.model.program.pack import Product
from engine.model.program.provenance import CASTS
from engine.model.program.reading import Reading
from engine.model.program.unreadable import UnreadableError

# Functions that only move, copy or cast numbers.
_MOVE = ("view", "reshape", "flatten", "unflatten", "transpose", "permute", "unsqueeze", "squeeze")
_COPY = ("contiguous", "clone", "dropout")
_SAME = frozenset((*_MOVE, *_COPY, *CASTS))
_ADD = frozenset(("add", "__add__", "__radd__"))
_MULTIPLY = frozenset(("mul", "multiply", "__mul__", "__rmul__"))
_DIVIDE = frozenset(("div", "divide", "true_divide", "__truediv__"))
_ACTIVATE = frozenset(("silu", "gelu", "relu", "tanh", "sigmoid", "softplus"))


@dataclass(eq=False)
class Elementwise(Kerneled):
    """activation(alpha * x); x + alpha * y; or alpha * activation(x) * y, depending on `combine`.

    Attributes:
        combine: `none`, `add` or `multiply`.
        y: another matrix, or one row for all rows; None if `combine` is `none`. If it has fewer
            columns than x, each is used for several adjacent ones of x.
    """

    may_sample: ClassVar[bool] = True
    out: Value
    x: View
    combine: str = "none"
    y: View | Tensor | None = None
    activation: str = "none"
    alpha: float = 1.0

    @property
    def copied(self) -> View | None:
        """See `Operation.copied`."""
        is_copy = (self.combine, self.activation, self.alpha) == ("none", "none", 1.0)
        return self.x if is_copy else None

    @property
    def alike(self) -> View | None:
        """y, if it is a matrix with as many columns as x, so that both can be exchanged."""
        y = self.y
        return y if isinstance(y, View) and y.columns == self.x.columns else None

    def in_float32(self, out: bool) -> list[View]:
        """See `Operation.in_float32`."""
        return self.reads() if out else []

    def emit(self, to: Emitter, *products: Product) -> None:
        """See `Kerneled.emit`."""
        y = self.y
        to.program.elementwise(
            out=to.place_of(self.out),
            x=to.place(self.x),
            combine=self.combine,
            y=y.to(to.dtype) if isinstance(y, Tensor) else y and to.place(y),
            activation=self.activation,
            alpha=self.alpha,
        )

    def compute(self, of: Numbers) -> Tensor:
        """See `Kerneled.compute`."""
        function, x, y = ACTIVATIONS[self.activation], wide(of(self.x)), self.y
        if self.combine == "none" or y is None:
            return function(self.alpha * x)
        other = wide(of(y) if isinstance(y, View) else y)
        other = other.repeat_interleave(x.shape[1] // other.shape[-1], dim=-1)
        if self.combine == "add":
            return x + self.alpha * other
        return self.alpha * function(x) * other


@dataclass(eq=False)
class Beside(Kerneled):
    """The columns of x, followed by those of y."""

    out: Value
    x: View
    y: View

    def emit(self, to: Emitter, *products: Product) -> None:
        """See `Kerneled.emit`."""
        buffer, column, _ = to.place_of(self.out)
        for view in (self.x, self.y):
            to.program.elementwise(out=(buffer, column, view.columns), x=to.place(view))
            column += view.columns

    def compute(self, of: Numbers) -> Tensor:
        """See `Kerneled.compute`."""
        return torch.cat((of(self.x), of(self.y)), dim=1)


def read_elementwise(
    reading: Reading, call: Call, output: Tensor, out: Value
) -> list[Operation] | None:
    """A module's activation, or a function that changes or combines numbers one by one."""
    if call.function:
        found = _function(reading, call, output, out)
    else:
        module, views = reading.module_on(call)
        if module is None or len(views) != 1:
            return None
        found = activation_of(module, views[0], out)
    return None if found is None else [found]


def activation_of(module: nn.Module, x: View, out: Value) -> Elementwise | None:
    """The activation of x that a module without parameters computes, if kernels have it."""
    if out.width != x.columns or dict(module.named_parameters(recurse=False)):
        return None
    activation = guess_activation(module)
    return None if activation is None else Elementwise(out, x, activation=activation)


def _function(reading: Reading, call: Call, output: Tensor, out: Value) -> Elementwise | None:
    name, like = call.function, reading.provenance.like
    # A single number is a factor, whatever its axes.
    tensors = [tensor for tensor in call.inputs if tensor.numel() > 1]
    if name in _SAME:
        return Elementwise(out, like(call.args[0], output))
    if name in _ACTIVATE:
        if call.kwargs.get("approximate") == "tanh":
            name = "gelu_tanh"
        x = like(tensors[0], output)
        # It may have other arguments, such as the steepness of a softplus.
        if not agree(ACTIVATIONS[name](x.reference.double()), out.reference):
            raise UnreadableError("our kernels do not take its arguments")
        return Elementwise(out, x, activation=name)
    if call.kwargs or len(call.args) != 2:
        return None
    if name in _MULTIPLY | _DIVIDE and len(tensors) == 1:
        first, second = call.args
        factor = second if first is tensors[0] else first
        if isinstance(factor, Tensor) and reading.varies(factor):
            raise UnreadableError("its factor depends on the tokens")
        if name in _DIVIDE and factor is first:
            raise UnreadableError("it divides by a matrix")
        alpha = float(factor) if name in _MULTIPLY else 1 / float(factor)
        return Elementwise(out, like(tensors[0], output), alpha=alpha)
    if name in _ADD | _MULTIPLY and len(tensors) == 2:
        combine = "add" if name in _ADD else "multiply"
        first, second = tensors
        if first.numel() < second.numel():
            first, second = second, first
        x = like(first, output)
        y: View | Tensor
        row = _row(reading, second, output, x)
        if row is not None:
            y = row
        elif second.numel() < first.numel():
            y = _spread(reading, second, x, combine, out)
        else:
            y = like(second, output)
        return Elementwise(out, x, combine, y)
    return None


def _row(reading: Reading, tensor: Tensor, output: Tensor, x: View) -> Tensor | None:
    """A constant as one number for each column, if it is the same for all rows; else None.

    Args:
        output: what it gives together with x.
    """
    sides = (1,) * (output.ndim - tensor.ndim) + tuple(tensor.shape)
    of_rows = (at for at, size in enumerate(output.shape) if size % len(x.reference) == 0)
    axis = next(of_rows, None)
    if axis is None or sides[axis] > 1 or reading.varies(tensor):
        return None
    row = tensor.detach().float().reshape(sides).expand(output.shape).select(axis, 0).flatten()
    return row if len(row) == x.columns else None


def _spread(reading: Reading, tensor: Tensor, x: View, combine: str, out: Value) -> View:
    """The view that a tensor shows, if each of its columns serves adjacent ones of x."""
    y = reading.provenance.view(tensor)
    if x.columns % y.columns == 0:
        each = y.reference.double().repeat_interleave(x.columns // y.columns, dim=1)
        function = torch.add if combine == "add" else torch.mul
        if agree(function(x.reference.double(), each), out.reference):
            return y
    raise UnreadableError("its tensors have different shapes")


def read_beside(reading: Reading, call: Call, output: Tensor, out: Value) -> list[Operation] | None:
    """The content and position of a latent, which attention rotates: they are read before the
    model's rotation.
    """
    target = call.target
    if not isinstance(target, KernelCall) or target.function != "join":
        return None
    expansion, given = target.arguments["expansion"], target.arguments["given"]
    content = reading.provenance.view(given[0])
    position, rotation = reading.rotations.of(given[1][0].transpose(0, 1))
    joined = Value(torch.cat((content.reference, position.reference), dim=1), per_sample=False)
    reading.keep_latent(joined, rotation, begin=expansion.keys.shape[2])
    return [Beside(joined, content, position)]
