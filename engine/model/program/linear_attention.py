"""Linear attention: convolutions and linear recurrences of modules that keep states."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

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


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A causal convolution of each column: [T, columns] float64.

    Args:
        x: [T, columns].
        weight: [taps, columns], the newest token's tap last.
        bias: [columns].
    """
    padded = F.pad(x.double().T, (len(weight) - 1, 0))
    taps = weight.double().T[:, None]
    return F.conv1d(padded[None], taps, None if bias is None else bias.double(), groups=len(taps))[
        0
    ].T


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
