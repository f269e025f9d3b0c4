"""Latents: the expansion of latents to all heads' keys and values, and attention to latents."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Expansion:
    """The linear expansion of a latent to heads' keys and values, token by token.

    A token has a latent c and numbers r for its position. The key of head h is (K_h c, r) and its
    value V_h c, so that a query (q, p) scores K_h^T q on c and p on r. So attention has one head
    whose keys are (c, r) and whose values are c, with the queries (K_h^T q, p); V_h is applied to
    its output (DeepSeek-V2, arXiv 2405.04434, section 2.1.2).

    Attributes:
        keys: [H, head_dim - R, C], the matrices K_h; C and R are the lengths of c and r.
        values: [H, value_dim, C], the matrices V_h.
    """

    keys: Tensor
    values: Tensor

    def join(self, content: Tensor, position: Tensor) -> Tensor:
        """Join the parts of a step's latents, [1, 1, T, C] and [1, 1, T, R], to [T, 1, C + R]."""
        return torch.cat((content, position), dim=-1)[0].transpose(0, 1)

    def absorb(self, query: Tensor) -> Tensor:
        """Convert a step's queries, [T, H, head_dim], for attention to latents, [T, H, C + R]."""
        content, position = query.tensor_split([self.keys.shape[1]], dim=2)
        size = self.keys.shape[2]
        absorbed = query.new_empty(*query.shape[:2], size + position.shape[2])
        absorbed[..., :size] = torch.bmm(content.transpose(0, 1), self.keys).transpose(0, 1)
        absorbed[..., size:] = position
        return absorbed

    def release(self, attended: Tensor) -> Tensor:
        """Convert latent attention's output, [T, H, C], to heads' values, [T, H, value_dim]."""
        heads = torch.bmm(attended.transpose(0, 1), self.values.transpose(1, 2))
        return heads.transpose(0, 1)
