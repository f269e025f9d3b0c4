"""guess: determines a module's operation on a matrix, by its parameters and recorded numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from engine.model.program.activations import ACTIVATIONS, guess_activation
from engine.model.program.agree import agree, differences
from engine.model.program.graph import Operation, Value, View
from engine.model.program.operations.elementwise import Elementwise
from engine.model.program.operations.linear import Linear
from engine.model.program.operations.norm import Norm

_EPS_NAMES = ("variance_epsilon", "eps", "epsilon", "norm_eps")


def guess(module: nn.Module, x: View, out: Value, last: int) -> Operation | None:
    """A product, an activation or a norm that reproduces the recorded numbers; else None.

    Args:
        last: length of the last axis of the module's input, over which a norm without weights runs.
    """
    parameters = dict(module.named_parameters(recurse=False))
    if not parameters.keys() <= {"weight", "bias"}:
        return None
    weight, bias = (
        None if name not in parameters else parameters[name].detach() for name in ("weight", "bias")
    )
    if weight is not None and weight.ndim == 2:
        return _product(x, out, weight, bias)
    if out.width != x.columns:
        return None
    if weight is None and bias is None:
        activation = guess_activation(module)
        if activation is not None:
            return Elementwise(out, x, activation=activation)
    return _norm(module, x, out, weight, bias, last if weight is None else len(weight))


def guess_gated_norm(
    module: nn.Module, x: View, gate: View, out: Value, last: int
) -> list[Operation] | None:
    """A norm of x with a gate after or before it that reproduces the recorded numbers; else None.

    Args:
        last: see `guess`.
    """
    if not out.width == x.columns == gate.columns:
        return None
    parameters = dict(module.named_parameters(recurse=False))
    if not parameters.keys() <= {"weight"}:
        return None
    weight = parameters["weight"].detach() if parameters else None
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
    x = norm.x.reference.double()
    x = x.reshape(len(x), norm.groups, -1)
    moved = x - x.mean(-1, keepdim=True) if norm.center else x
    normal = moved * torch.rsqrt(moved.square().mean(-1, keepdim=True) + norm.eps)
    scaled = normal if norm.weight is None else normal * norm.weight.double()
    return scaled.flatten(1)


def _product(x: View, out: Value, weight: Tensor, bias: Tensor | None) -> Linear | None:
    if weight.dtype != x.reference.dtype:
        return None  # such as a router in float32; a program has one type
    for matrix in (weight, weight.T):
        # It is computed in the model's own type, because a copy of an output head in a wider one
        # takes gigabytes.
        if matrix.shape == (out.width, x.columns) and agree(
            F.linear(x.reference, matrix, bias).double(), out.reference
        ):
            return Linear(out, x, (matrix,), () if bias is None else (bias,))
    return None


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
