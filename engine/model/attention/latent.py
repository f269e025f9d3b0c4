"""Latents: what the keys and values of all heads of a layer are made of, and attention to them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Expansion:
    """How keys and values of heads are made of a latent: linearly, token by token.

    A token has a latent c and numbers r, which tell its position. The key of head h is (K_h c, r)
    and its value V_h c, so that a query (q, p) scores K_h^T q on c and p on r. Attention is
    therefore to one head whose keys are (c, r) and whose values are c, with the queries
    (K_h^T q, p); V_h is for what comes out of it (DeepSeek-V2, arXiv 2405.04434, section 2.1.2).

    Attributes:
        keys: [H, head_dim - R, C], the matrices K_h; C is how long c is, and R how long r is.
        values: [H, value_dim, C], the matrices V_h.
    """

    keys: Tensor
    values: Tensor

    def join(self, content: Tensor, position: Tensor) -> Tensor:
        """The latents of a step, [T, 1, C + R], of their parts, [1, 1, T, C] and [1, 1, T, R]."""
        return torch.cat((content, position), dim=-1)[0].transpose(0, 1)

    def absorb(self, query: Tensor) -> Tensor:
        """The queries of a step, [T, H, head_dim], as they attend to latents, [T, H, C + R]."""
        content, position = query.tensor_split([self.keys.shape[1]], dim=2)
        size = self.keys.shape[2]
        absorbed = query.new_empty(*query.shape[:2], size + position.shape[2])
        absorbed[..., :size] = torch.bmm(content.transpose(0, 1), self.keys).transpose(0, 1)
        absorbed[..., size:] = position
        return absorbed

    def release(self, attended: Tensor) -> Tensor:
        """What attention to latents gives, [T, H, C], as values of heads, [T, H, value_dim]."""
        heads = torch.bmm(attended.transpose(0, 1), self.values.transpose(1, 2))
        return heads.transpose(0, 1)
