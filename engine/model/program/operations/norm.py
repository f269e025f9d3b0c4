"""Norm: RMSNorm and LayerNorm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from engine.model.program.activations import ACTIVATIONS
from engine.model.program.agree import agree, differences
from engine.model.program.capture import Call
from engine.model.program.graph import Operation, Value, View
from engine.model.program.operations.elementwise import Elementwise
from engine.model.program.operations.kerneled import Emitter, Kerneled, Numbers, wide
from engine.model.program.pack import Product
from engine.model.program.reading import Reading, weight_and_bias

_EPS_NAMES = ("variance_epsilon", "eps", "epsilon", "norm_eps")


@dataclass(eq=False)
class Norm(Kerneled):
    """RMSNorm, or LayerNorm if `center`, over each of `groups` parts of a row.

    Attributes:
        weight, bias: [columns / groups] float32.
    """

    may_sample: ClassVar[bool] = True
    out: Value
    x: View
    groups: int
    weight: Tensor | None
    bias: Tensor | None
    eps: float
    center: bool

    def emit(self, to: Emitter, *products: Product) -> None:
        """See `Kerneled.emit`."""
        out, x = to.place_of(self.out), to.place(self.x)
        to.program.norm(out, x, self.groups, self.weight, self.bias, self.eps, self.center)

    def compute(self, of: Numbers) -> Tensor:
        """See `Kerneled.compute`."""
        rows = wide(of(self.x))
        return normal(rows.reshape(len(rows), self.groups, -1), self).flatten(1)


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """The norm of each head of a query or key, after its rotation. Attributes as in `Norm`."""

    weight: Tensor | None
    bias: Tensor | None
    eps: float
    center: bool


def normal(x: Tensor, by: Norm | HeadNorm) -> Tensor:
    """Normalise over the last axis."""
    given = x - x.mean(-1, keepdim=True) if by.center else x
    made = given * torch.rsqrt(given.square().mean(-1, keepdim=True) + by.eps)
    made = made if by.weight is None else made * by.weight
    return made if by.bias is None else made + by.bias


def read_norm(reading: Reading, call: Call, output: Tensor, out: Value) -> list[Operation] | None:
    """A module's norm of a matrix, or its norm with a gate."""
    module, views = reading.module_on(call)
    if module is None or len(views) not in (1, 2):
        return None
    last = call.inputs[0].shape[-1]
    if len(views) == 2:
        return _gated_norm_of(module, views[0], views[1], out, last)
    found = norm_of(module, views[0], out, last)
    return None if found is None else [found]


def norm_of(module: nn.Module, x: View, out: Value, last: int) -> Norm | None:
    """A norm of x by a module that reproduces the recorded numbers; else None.

    Args:
        last: length of the last axis of the module's input, over which a norm without weights runs.
    """
    parameters = weight_and_bias(module)
    if parameters is None or out.width != x.columns:
        return None
    weight, bias = parameters
    if weight is not None and weight.ndim == 2:
        return None
    return _norm(module, x, out, weight, bias, last if weight is None else len(weight))


def _gated_norm_of(
    module: nn.Module, x: View, gate: View, out: Value, last: int
) -> list[Operation] | None:
    """A norm of x with a gate after or before it that reproduces the recorded numbers; else None.

    Args:
        last: see `norm_of`.
    """
    if not out.width == x.columns == gate.columns:
        return None
    parameters = weight_and_bias(module)
    if parameters is None or parameters[1] is not None:
        return None
    weight, _ = parameters
    width = last if weight is None else len(weight)
    for activation in ("silu", "sigmoid"):
        factor = ACTIVATIONS[activation](gate.reference.double())
        product = Value((x.reference * factor).to(out.reference.dtype), out.per_sample)
        gated = Elementwise(product, gate, "multiply", x, activation)
        after = _grouped_norm(module, View(product, 0, out.width), out, weight, width)
        if after is not None:
            return [gated, *after]
        normal = Value(out.reference, out.per_sample)  # its numbers are computed below
        before = _norm(module, x, normal, weight, None, width, factor)
        if before is not None:
            normal.reference = _normalized(before).to(out.reference.dtype)
            return [
                before,
                Elementwise(out, gate, "multiply", View(normal, 0, out.width), activation),
            ]
    return None


def _grouped_norm(
    module: nn.Module, x: View, out: Value, weight: Tensor | None, width: int
) -> list[Operation] | None:
    """A norm of groups of columns, whose weights may differ between groups."""
    found = _norm(module, x, out, weight, None, width)
    if found is not None:
        return [found]
    if weight is None or len(weight) != out.width:
        return None
    sizes = {one for one in vars(module).values() if isinstance(one, int) and one > 1}
    for size in sorted(one for one in sizes if out.width % one == 0):
        normal = Value(out.reference, out.per_sample)
        bare = _norm(module, x, normal, None, None, size, weight.double())
        if bare is not None:
            normal.reference = _normalized(bare).to(out.reference.dtype)
            row = weight.float().contiguous()
            return [bare, Elementwise(out, View(normal, 0, out.width), "multiply", row)]
    return None


def _normalized(norm: Norm) -> Tensor:
    """Apply a norm to the recorded numbers, in float64."""
    return norm.compute(lambda view: view.reference.double())


def _norm(
    module: nn.Module,
    x: View,
    out: Value,
    weight: Tensor | None,
    bias: Tensor | None,
    width: int,
    factor: Tensor | float = 1.0,
) -> Norm | None:
    """A norm of groups of `width` columns that, times a factor, reproduces the recorded numbers."""
    if x.columns % width:
        return None
    grouped = x.reference.double().reshape(len(x.reference), -1, width)
    shift = None if bias is None else bias.double()
    # Gemma's norms store their weights minus 1.
    scales = [None] if weight is None else [weight.double(), 1 + weight.double()]
    stated = [getattr(module, name, None) for name in _EPS_NAMES]
    # The best one counts, because the mean of wide rows is so near 0 that RMSNorm agrees with
    # LayerNorm.
    best: tuple[float, bool, Tensor | None] | None = None
    least = math.inf
    for eps in dict.fromkeys(value for value in stated if isinstance(value, float)):
        for center in (False, True):
            moved = grouped - grouped.mean(-1, keepdim=True) if center else grouped
            normal = moved * torch.rsqrt(moved.square().mean(-1, keepdim=True) + eps)
            for scale in scales:
                got = normal if scale is None else normal * scale
                got = (got if shift is None else got + shift).flatten(1) * factor
                difference = float(differences(got, out.reference).norm())
                if difference < least and agree(got, out.reference):
                    best, least = (eps, center, scale), difference
    if best is None:
        return None
    eps, center, scale = best
    scale, shift = (None if t is None else t.float() for t in (scale, shift))
    return Norm(out, x, grouped.shape[1], scale, shift, eps, center)
