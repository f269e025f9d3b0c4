"""KVStorage: the tensors behind the block pool."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class KVStorage:
    """Keys and values of every layer in blocks of token slots (PagedAttention, SOSP'23, section 4).

    Slot s of the pool is token s % block_size of block s // block_size, in every layer.

    Attributes:
        keys: for each layer, [num_blocks, block_size, num_kv_heads, head_dim].
        values: for each layer, [num_blocks, block_size, num_kv_heads, value_dim].
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        value_dim: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        shape = (num_layers, num_blocks, block_size, num_kv_heads)
        self.block_size = block_size
        self.dtype = dtype
        self.device = torch.device(device)
        # One allocation for all layers: a copy of blocks is one operation, not one a layer. Left as
        # it comes: zeroing 1.6 GB took 4.5 s at start, and a block is cleared when it is given.
        self._all_keys = torch.empty(*shape, head_dim, dtype=dtype, device=self.device)
        self._all_values = torch.empty(*shape, value_dim, dtype=dtype, device=self.device)
        self.keys = self._all_keys.unbind(0)
        self.values = self._all_values.unbind(0)
        self._key_slots = [layer.flatten(0, 1) for layer in self.keys]
        self._value_slots = [layer.flatten(0, 1) for layer in self.values]

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store tokens of one layer.

        Args:
            slots: [T] int64, distinct.
            key: [T, num_kv_heads, head_dim].
            value: [T, num_kv_heads, value_dim].
        """
        self._key_slots[layer].index_copy_(0, slots, key)
        self._value_slots[layer].index_copy_(0, slots, value)

    def gather(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of whole blocks, [B] int64.

        Returns:
            [B, block_size, num_kv_heads, head_dim] and [B, block_size, num_kv_heads, value_dim].
        """
        return self.keys[layer].index_select(0, blocks), self.values[layer].index_select(0, blocks)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy (source, target) blocks in every layer, as if all at once."""
        if pairs:
            sources, targets = torch.tensor(pairs, device=self.device).unbind(1)
            for tensor in (self._all_keys, self._all_values):
                tensor.index_copy_(1, targets, tensor.index_select(1, sources))

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        """Fill blocks with zeros in every layer."""
        if blocks:
            index = torch.tensor(blocks, device=self.device)
            self._all_keys.index_fill_(1, index, 0)
            self._all_values.index_fill_(1, index, 0)
