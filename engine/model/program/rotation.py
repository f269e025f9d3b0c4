"""Rotary embeddings (RoFormer, arXiv 2104.09864): how models lay out pairs and tables."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """The first 2 * half columns of each head, [T, heads, head_dim], by tables [T, half]."""
    half = cos.shape[1]
    cos, sin = cos[:, None], sin[:, None]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        a, b = turned[..., ::2], turned[..., 1::2]
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    else:
        a, b = turned[..., :half], turned[..., half:]
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    return torch.cat((turned, rest), dim=-1)


def conventions(width: int, head_dim: int) -> Iterator[tuple[slice, bool]]:
    """Which columns of the tables hold one number a pair, and how pairs lie."""
    picks = [slice(0, width)] if 2 * width <= head_dim else []
    if width % 2 == 0:
        picks += [slice(0, width // 2), slice(0, None, 2)]
    for pick in picks:
        for interleaved in (False, True):
            yield pick, interleaved
