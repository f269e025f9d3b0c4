"""Recur: linear attention, whose state decays from token to token.

Modules of transformers call functions for it that kernels of other packages can replace:
flash-linear-attention, mamba-ssm. So the argument names are those of these packages. The meaning of
the arguments is guessed, and accepted if it reproduces the recorded numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from engine.model.program.agree import agree
from engine.model.program.capture import NUM_TOKENS, Call, KernelCall
from engine.model.program.graph import Operation, Value, View
from engine.model.program.operations.elementwise import Elementwise
from engine.model.program.operations.kerneled import Emitter, Kerneled, Numbers, TorchStep
from engine.model.program.pack import Product
from engine.model.program.provenance import Provenance, address_of
from engine.model.program.reading import Reading
from engine.model.program.unreadable import UnreadableError

# Added to a squared length before its root is taken, as in flash-linear-attention.
_LENGTH_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Recurrence:
    """How the state S [key_dim, value_dim] of each head changes from token to token.

    step = decay + decay_bias, or softplus of it, within `limits`, and d = exp(decay_scale step).
    With beta it is the gated delta rule (arXiv 2412.06464, equation 10): S = d S + k u^T for u =
    beta (v - (d S)^T k). Scaled it is Mamba 2's state space (arXiv 2405.21060, section 3), with u =
    step v. The output is scaling S^T q + skip v.

    Attributes:
        heads: heads of values and states.
        key_heads: heads of queries and keys, each shared by heads / key_heads heads.
        decay_bias, skip: [heads] float32.
        decay_scale: [heads] float32.
        normalize: whether queries and keys are divided by their lengths.
    """

    heads: int
    key_heads: int
    decay_bias: Tensor | None
    decay_scale: Tensor
    softplus: bool
    limits: tuple[float, float]
    scaled: bool
    skip: Tensor | None
    normalize: bool
    scaling: float


@dataclass(eq=False)
class Recur(Kerneled):
    """Linear attention with a state for each head that decays from token to token.

    Attributes:
        query, key: key_heads * key_dim columns.
        value: heads * value_dim columns.
        decay, beta: a column for each head.
    """

    parts: ClassVar[tuple[type, ...]] = (Recurrence,)
    out: Value
    query: View
    key: View
    value: View
    decay: View
    beta: View | None
    way: Recurrence

    def emit(self, to: Emitter, *products: Product) -> None:
        """See `Kerneled.emit`."""
        way = self.way
        inputs = (self.query, self.key, self.value, self.decay)
        low, high = way.limits
        to.program.recur(
            out=to.place_of(self.out),
            reads=[to.place(view) for view in inputs],
            beta=None if self.beta is None else to.place(self.beta),
            key_heads=way.key_heads,
            decay_bias=way.decay_bias,
            decay_scale=way.decay_scale,
            softplus=way.softplus,
            low=low,
            high=high,
            scaled=way.scaled,
            skip=way.skip,
            normalize=way.normalize,
            scaling=way.scaling,
            state=to.state(self, *self._state_shape, dtype=torch.float32),
        )

    def run(self, of: Numbers, step: TorchStep) -> Tensor:
        """See `Kerneled.run`."""
        inputs = (self.query, self.key, self.value, self.decay)
        states = step.state(self, *self._state_shape, dtype=torch.float32)
        out = []
        for tokens, slot, is_new in step.sequences():
            state = states[slot]
            if is_new:
                state.zero_()
            query, key, value, decay = (of(view)[tokens] for view in inputs)
            beta = None if self.beta is None else of(self.beta)[tokens]
            out.append(recur(query, key, value, decay, beta, self.way, state))
        return torch.cat(out)

    @property
    def _state_shape(self) -> tuple[int, int, int]:
        """The shape of a sequence's state. It is in float32, because its sum is rounded once a
        token.
        """
        way = self.way
        key_dim, value_dim = self.key.columns // way.key_heads, self.value.columns // way.heads
        return way.heads, key_dim, value_dim


def recur(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    beta: Tensor | None,
    way: Recurrence,
    kept_state: Tensor | None = None,
) -> Tensor:
    """A recurrence over a sequence, token by token: [T, heads * value_dim] float64.

    Args:
        query, key, value, decay, beta: [T, columns], see `Recur`.
        kept_state: [heads, key_dim, value_dim], the first state, overwritten with the last one;
            None starts with zeros.
    """
    tokens, group = len(query), way.heads // way.key_heads
    queries, keys = (
        one.double().reshape(tokens, way.key_heads, -1).repeat_interleave(group, dim=1)
        for one in (query, key)
    )
    if way.normalize:
        queries, keys = (
            one * torch.rsqrt(one.square().sum(-1, keepdim=True) + _LENGTH_EPS)
            for one in (queries, keys)
        )
    values = value.double().reshape(tokens, way.heads, -1)
    steps = decay.double() if way.decay_bias is None else decay.double() + way.decay_bias.double()
    steps = (F.softplus(steps) if way.softplus else steps).clamp(*way.limits)
    new = values * steps[..., None] if way.scaled else values
    kept = torch.exp(way.decay_scale.double() * steps)[..., None, None]
    state = values.new_zeros(way.heads, keys.shape[-1], values.shape[-1])
    if kept_state is not None:
        state += kept_state
    rows = []
    for at in range(tokens):
        state = state * kept[at]
        given = new[at]
        if beta is not None:
            known = torch.einsum("hkv,hk->hv", state, keys[at])
            given = beta[at].double()[:, None] * (given - known)
        state = state + keys[at][..., None] * given[:, None]
        rows.append(way.scaling * torch.einsum("hkv,hk->hv", state, queries[at]))
    if kept_state is not None:
        kept_state.copy_(state)
    out = torch.stack(rows)
    if way.skip is not None:
        out = out + way.skip.double()[:, None] * values
    return out.flatten(1)


def read_recur(reading: Reading, call: Call, output: Tensor, out: Value) -> list[Operation] | None:
    """The recurrence that reproduces the recorded numbers of a function.

    Its arguments are, for a gated delta rule, `query`, `key`, `value`, `g`, `beta`; or for a state
    space, `hidden_states`, `dt`, `A`, `B`, `C`, `D`.
    """
    if not isinstance(call.target, KernelCall):
        return None
    arguments, provenance = call.target.arguments, reading.provenance
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
            return [one]
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
