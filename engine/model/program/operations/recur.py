"""Recur: linear attention, whose state decays from token to token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from engine.model.program.graph import Value, View
from engine.model.program.operations.kerneled import Emitter, Kerneled, Numbers, TorchStep
from engine.model.program.pack import Product

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
