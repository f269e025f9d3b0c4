"""SMALL: a cache that is large enough to be made."""

from __future__ import annotations

import torch

from engine.cache.storage import CacheShape

SMALL = CacheShape(
    num_layers=1,
    num_blocks=4,
    block_size=16,
    num_kv_heads=1,
    head_dim=8,
    value_dim=8,
    dtype=torch.float32,
    device=torch.device("cpu"),
)
