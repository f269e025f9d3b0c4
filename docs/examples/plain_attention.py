"""An attention backend of one's own: by the definition, a sequence at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.cache.storage import CacheShape, TokenStorage
from engine.model.attention.base import StepContext
from engine.model.attention.params import AttentionParams


class PlainAttention:
    """Softmax over all that a row sees, in float32: what is fast has to agree with it."""

    @property
    def name(self) -> str:
        """See `AttentionBackend.name`."""
        return "plain"

    def storage(self, shape: CacheShape) -> TokenStorage:
        """See `AttentionBackend.storage`."""
        return TokenStorage(shape)

    def attend(
        self, query: Tensor, layer: int, context: StepContext, params: AttentionParams
    ) -> Tensor:
        """See `AttentionBackend.attend`."""
        storage = context.storage
        assert isinstance(storage, TokenStorage)
        device, size = query.device, storage.shape.block_size
        groups = query.shape[1] // storage.shape.num_kv_heads
        rows = zip(
            torch.split(query.float(), context.counts.tolist()),
            context.starts.tolist(),
            context.block_tables,
            strict=True,
        )
        outputs = []
        for row, start, table in rows:
            length = start + len(row)
            # Entries past the row's own blocks are undefined.
            blocks = torch.from_numpy(table[: -(-length // size)]).to(device)
            key, value = (
                cached.flatten(0, 1)[:length].float().repeat_interleave(groups, dim=1)
                for cached in storage.gather(layer, blocks)
            )
            scores = torch.einsum("qhd,khd->hqk", row, key) * params.scaling
            if params.softcap is not None:
                scores = params.softcap * torch.tanh(scores / params.softcap)
            position = torch.arange(start, length, device=device)[:, None]
            distance = position - torch.arange(length, device=device)
            hidden = distance < 0
            if params.window is not None:
                hidden |= distance >= params.window
            scores = scores.masked_fill(hidden, float("-inf"))
            if params.sinks is not None:
                column = params.sinks.float()[:, None, None].expand(-1, len(row), 1)
                scores = torch.cat((scores, column), dim=-1)
            weights = scores.softmax(-1)[..., :length]
            outputs.append(torch.einsum("hqk,khd->qhd", weights, value))
        return torch.cat(outputs).to(query.dtype)
