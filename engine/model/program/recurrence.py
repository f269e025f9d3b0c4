"""Recurrence: recognises the causal convolutions and linear recurrences of modules with states.

Modules of transformers call functions for them that kernels of other packages can replace:
causal-conv1d, flash-linear-attention, mamba-ssm. So the argument names are those of these packages.
The meaning of the arguments is guessed, and accepted if it reproduces the recorded numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from engine.model.program.activations import ACTIVATIONS
from engine.model.program.agree import agree
from engine.model.program.capture import NUM_TOKENS
from engine.model.program.graph import Value, View
from engine.model.program.operations.convolve import Convolve, convolve
from engine.model.program.operations.elementwise import Elementwise
from engine.model.program.operations.recur import Recur, Recurrence, recur
from engine.model.program.provenance import Provenance, address_of
from engine.model.program.unreadable import UnreadableError

# Most taps of a convolution's kernel.
_MOST_TAPS = 8


def read_convolution(
    arguments: Mapping[str, Any], provenance: Provenance, out: Value
) -> Convolve | None:
    """The convolution that reproduces these numbers; None if there is none.

    Args:
        arguments: x [1, columns, T] or [1, T, columns], `weight` [columns, taps], and maybe `bias`
            [columns] and the name of an `activation`.
    """
    weight, bias = arguments.get("weight"), arguments.get("bias")
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        return None
    if len(weight) != out.width or not 2 <= weight.shape[1] <= _MOST_TAPS:
        return None
    x = provenance.view(next(iter(arguments.values())))
    if x.columns != out.width:
        return None
    taps = weight.detach().float().T.contiguous()
    bias = None if bias is None else bias.detach().float().contiguous()
    exact = convolve(x.reference, taps, bias)
    for name, function in ACTIVATIONS.items():
        if agree(function(exact), out.reference):
            return Convolve(out, x, taps, bias, name)
    return None


def read_recurrence(
    arguments: Mapping[str, Any], provenance: Provenance, out: Value
) -> Recur | None:
    """The recurrence that reproduces these numbers; None if there is none.

    Args:
        arguments: for a gated delta rule, `query`, `key`, `value`, `g`, `beta`; or for a state
            space, `hidden_states`, `dt`, `A`, `B`, `C`, `D`.
    """
    if {"query", "key", "value", "g", "beta"} <= arguments.keys():
        tried = _delta_rules(arguments, provenance, out)
    elif {"hidden_states", "dt", "A", "B", "C"} <= arguments.keys():
        tried = _state_spaces(arguments, provenance, out)
    else:
        return None
    for one in tried:
        beta = None if one.beta is None else one.beta.reference
        query, key, value, decay = (
            view.reference for view in (one.query, one.key, one.value, one.decay)
        )
        # Some return float32 of numbers computed in a coarser type.
        recorded = out.reference.to(value.dtype)
        if agree(recur(query, key, value, decay, beta, one.way), recorded):
            return one
    return None


def _delta_rules(
    arguments: Mapping[str, Any], provenance: Provenance, out: Value
) -> Iterator[Recur]:
    heads, key_dim = arguments["value"].shape[2], arguments["key"].shape[3]
    query, key = (_before_repeats(arguments[name], provenance) for name in ("query", "key"))
    value, beta = (provenance.view(arguments[name]) for name in ("value", "beta"))
    decay, bias, scale = _decay(arguments["g"], provenance)
    way = Recurrence(
        heads=heads,
        key_heads=key.columns // key_dim,
        decay_bias=bias,
        decay_scale=scale,
        softplus=True,
        limits=(0.0, math.inf),
        scaled=False,
        skip=None,
        normalize=True,
        scaling=key_dim**-0.5,
    )
    for normalize in (True, False):
        yield Recur(out, query, key, value, decay, beta, replace(way, normalize=normalize))


def _state_spaces(
    arguments: Mapping[str, Any], provenance: Provenance, out: Value
) -> Iterator[Recur]:
    def row(name: str) -> Tensor | None:
        given = arguments.get(name)
        return None if given is None else given.detach().float().contiguous()

    query, key, value, decay = (
        provenance.view(arguments[name]) for name in ("C", "B", "hidden_states", "dt")
    )
    scale = row("A")
    assert scale is not None
    low, high = arguments.get("dt_limit") or (0.0, math.inf)
    way = Recurrence(
        heads=arguments["hidden_states"].shape[2],
        key_heads=arguments["B"].shape[2],
        decay_bias=row("dt_bias"),
        decay_scale=scale,
        softplus=bool(arguments.get("dt_softplus")),
        limits=(float(low), float(high)),
        scaled=True,
        skip=row("D"),
        normalize=False,
        scaling=1.0,
    )
    yield Recur(out, query, key, value, decay, None, way)


def _before_repeats(tensor: Tensor, provenance: Provenance) -> View:
    """Queries or keys, [1, T, heads, key_dim], before each head was repeated for several values."""
    if address_of(tensor) in provenance.values:
        return provenance.view(tensor)
    sources, _ = provenance.sources(tensor)
    if len(sources) == 1 and sources[0].ndim == tensor.ndim == 4:
        (source,) = sources
        repeated = source.repeat_interleave(tensor.shape[2] // source.shape[2], dim=2)
        if torch.equal(repeated, tensor):
            return provenance.view(source)
    raise provenance.failures[address_of(tensor)]


def _decay(tensor: Tensor, provenance: Provenance) -> tuple[View, Tensor | None, Tensor]:
    """How the logarithms of decays, [1, T, heads], are computed from a matrix.

    Returns:
        x, bias and scale, so that they are scale * softplus(x + bias).
    """
    if tensor.ndim != 3:
        raise UnreadableError("a decay has not a number for each head")
    view = provenance.origin(provenance.view(tensor))
    # The numbers decide below which is a scale and which a softplus.
    while (made := _shaped(view, provenance)) is not None:
        view = provenance.origin(made.x)
    bias, shift = None, provenance.maker(view)
    if (
        isinstance(shift, Elementwise)
        and view.is_whole
        and (shift.combine, shift.alpha) == ("add", 1.0)
        and isinstance(shift.y, Tensor)
    ):
        view, bias = provenance.origin(shift.x), shift.y
    recorded = tensor.reshape(NUM_TOKENS, -1).double()
    if view.columns != recorded.shape[1]:
        raise UnreadableError("a decay has not a column for each head")
    x = view.reference.double()
    steps = F.softplus(x if bias is None else x + bias.double())
    scale = (recorded / steps).median(dim=0).values
    if not agree(steps * scale, recorded.float()):
        raise UnreadableError("a decay is not a softplus of a matrix")
    return view, bias, scale.float().contiguous()


def _shaped(view: View, provenance: Provenance) -> Elementwise | None:
    """The operation that multiplied a matrix by numbers for its columns, or applied a softplus."""
    made = provenance.maker(view)
    if isinstance(made, Elementwise) and view.is_whole:
        scaled = made.combine == "multiply" and isinstance(made.y, Tensor)
        if scaled or (made.combine == "none" and made.activation in ("none", "softplus")):
            return made
    return None
