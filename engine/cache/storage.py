"""KVStorage: the tensors behind the block pool."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from time import perf_counter
from typing import ClassVar

import torch
from torch import Tensor

from engine.api.config import EngineConfig
from engine.batch.shape import LayerHeads, ModelShape
from engine.cache.host import PIECE_BYTES
from engine.cache.host_store import HostStore
from engine.native import kernels


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Dimensions of a cache, independent of its layout.

    Attributes:
        block_size: token slots in a block.
        num_host_blocks: blocks in host memory, for swapping.
        head_dim, value_dim: length of a key and of a value of one head.
        value_in_key: whether values are the first `value_dim` numbers of their keys, and not stored
            separately.
    """

    num_layers: int
    num_blocks: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device
    num_host_blocks: int = 0
    value_in_key: bool = False


def cache_shape(config: EngineConfig, shape: ModelShape) -> CacheShape:
    """Dimensions of a model's pool in this envelope, if all layers have the same heads."""
    return CacheShape(
        num_layers=shape.num_layers,
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        num_host_blocks=config.num_host_blocks,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        value_dim=shape.value_dim,
        value_in_key=shape.value_in_key,
        dtype=getattr(torch, config.dtype),
        device=torch.device(config.device),
    )


def cache_shapes(config: EngineConfig, shape: ModelShape) -> list[CacheShape]:
    """Dimensions of the parts of a model's pool, one for each kind of heads, in the order in which
    the layers first use them.
    """
    whole = cache_shape(config, shape)
    layers = shape.layers
    kinds = Counter(_kind(layers[layer]) for layer in shape.storing)
    return [
        replace(
            whole,
            num_layers=count,
            num_kv_heads=kind.num_kv_heads,
            head_dim=kind.head_dim,
            value_dim=kind.value_dim,
            value_in_key=kind.value_in_key,
        )
        for kind, count in kinds.items()
    ] or [whole]


def places(shape: ModelShape) -> list[tuple[int, int]]:
    """For each attention layer, (part of the pool, index in that part) of its keys and values.
    Layers that share them have the same place.
    """
    parts: dict[LayerHeads, int] = {}
    found: dict[int, tuple[int, int]] = {}
    used: Counter[int] = Counter()
    layers = shape.layers
    for layer in shape.storing:
        part = parts.setdefault(_kind(layers[layer]), len(parts))
        found[layer] = (part, used[part])
        used[part] += 1
    return [found[source] for source in shape.sources or range(len(layers))]


def _kind(heads: LayerHeads) -> LayerHeads:
    """A layer's heads as its cache sees them: the number of query heads does not matter."""
    return replace(heads, num_heads=heads.num_kv_heads)


class KVStorage(ABC):
    """Keys and values of every layer in blocks of token slots (PagedAttention, SOSP'23, section 4).

    Slot s of the pool is token s % block_size of block s // block_size, in every layer. The
    attention backend chooses the memory layout of a block.

    Attributes:
        keys, values: for each layer, [num_blocks, *block]; no values if they are part of the keys.

    Args:
        key_block, value_block: shape of one block of a layer.
    """

    def __init__(
        self, shape: CacheShape, key_block: tuple[int, ...], value_block: tuple[int, ...]
    ) -> None:
        self.shape = shape
        blocks = (key_block,) if shape.value_in_key else (key_block, value_block)
        # All layers are in one allocation, so that a copy of blocks is one operation, not one for
        # each layer. The memory is not initialised: zeroing 1.6 GB took 4.5 s at start, and a block
        # is cleared when it is allocated.
        self._all = tuple(
            torch.empty(
                shape.num_layers, shape.num_blocks, *block, dtype=shape.dtype, device=shape.device
            )
            for block in blocks
        )
        self.keys = self._all[0].unbind(0)
        self.values = () if shape.value_in_key else self._all[1].unbind(0)
        self._widths = [shape.num_layers * prod(block) for block in blocks]
        self._host = HostStore(
            shape.num_host_blocks,
            sum(self._widths),
            shape.dtype,
            pinned=shape.device.type == "cuda" and shape.num_host_blocks > 0,
        )

    @abstractmethod
    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store tokens of one layer.

        Args:
            slots: [T] int64, distinct.
            key: [T, num_kv_heads, head_dim].
            value: [T, num_kv_heads, value_dim]; ignored if values are part of the keys.
        """

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in all layers."""
        return self._host.row_bytes

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy (source, target) blocks in every layer, as if all at once."""
        if pairs:
            sources, targets = (self._index(blocks) for blocks in zip(*pairs, strict=True))
            for tensor in self._all:
                tensor.index_copy_(1, targets, tensor.index_select(1, sources))

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        """Fill blocks with zeros in every layer."""
        if blocks:
            index = self._index(blocks)
            for tensor in self._all:
                tensor.index_fill_(1, index, 0)

    def swap_out(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy (block, host block) to host memory in every layer.

        Neither this nor `swap_in` waits for the device: see `HostStore`.
        """
        for blocks, rows in self._pieces(pairs):
            piece = self._piece(len(blocks))
            index = self._index(blocks)
            for part, tensor in self._parts(piece):
                part.copy_(tensor.index_select(1, index).transpose(0, 1))
            self._host.fill(rows, piece)

    def swap_in(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy (host block, block) back in every layer."""
        for rows, blocks in self._pieces(pairs):
            piece = self._piece(len(blocks))
            self._host.read(rows, piece)
            index = self._index(blocks)
            for part, tensor in self._parts(piece):
                tensor.index_copy_(1, index, part.transpose(0, 1))

    def swap_rate(self) -> float:
        """Bytes a second at which blocks are swapped, out and back; 0 without host blocks.

        This is a measurement, so call it before host memory is in use.
        """
        most = min(self.shape.num_blocks, self.shape.num_host_blocks)
        count = min(most, max(1, 2 * PIECE_BYTES // self._host.row_bytes))
        if not count:
            return 0.0
        pairs = [(block, block) for block in range(count)]
        seconds = 0.0
        for _ in range(2):  # The first pass touches memory that was never used.
            self._synchronise()
            start = perf_counter()
            self.swap_out(pairs)
            self.swap_in(pairs)
            self._synchronise()
            seconds = perf_counter() - start
        return 2 * count * self._host.row_bytes / seconds

    def _index(self, blocks: Sequence[int]) -> Tensor:
        """Block numbers on the device, sent there without waiting."""
        index = torch.tensor(blocks, pin_memory=self.shape.device.type == "cuda")
        return index.to(self.shape.device, non_blocking=True)

    def _pieces(
        self, pairs: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        """Split the pairs into sources and targets, each as many as one piece holds."""
        most = max(1, PIECE_BYTES // self._host.row_bytes)
        for first in range(0, len(pairs), most):
            sources, targets = zip(*pairs[first : first + most], strict=True)
            yield sources, targets

    def _piece(self, num_blocks: int) -> Tensor:
        """Allocate device memory for blocks in host layout, [num_blocks, width]."""
        shape = self.shape
        return torch.empty(num_blocks, sum(self._widths), dtype=shape.dtype, device=shape.device)

    def _parts(self, piece: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Keys and values of a piece, [n, num_layers, *block], each with the pool's tensor."""
        for part, tensor in zip(torch.split(piece, self._widths, dim=1), self._all, strict=True):
            yield part.view(len(piece), len(tensor), *tensor.shape[2:]), tensor

    def _synchronise(self) -> None:
        if self.shape.device.type != "cpu":
            torch.accelerator.synchronize(self.shape.device)


class TokenStorage(KVStorage):
    """Storage with a token's heads side by side, as the model computes them.

    Attributes:
        keys: for each layer, [num_blocks, block_size, num_kv_heads, head_dim].
        values: for each layer, [num_blocks, block_size, num_kv_heads, value_dim].
    """

    def __init__(self, shape: CacheShape) -> None:
        tokens = (shape.block_size, shape.num_kv_heads)
        super().__init__(shape, (*tokens, shape.head_dim), (*tokens, shape.value_dim))
        self._key_slots = [layer.flatten(0, 1) for layer in self.keys]
        self._value_slots = [layer.flatten(0, 1) for layer in self.values]

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        self._key_slots[layer].index_copy_(0, slots, key)
        if self._value_slots:
            self._value_slots[layer].index_copy_(0, slots, value)

    def gather(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of whole blocks, [B] int64.

        Returns:
            [B, block_size, num_kv_heads, head_dim] and [B, block_size, num_kv_heads, value_dim], a
            view of the former where values are in the keys.
        """
        keys = self.keys[layer].index_select(0, blocks)
        if self.shape.value_in_key:
            return keys, keys[..., : self.shape.value_dim]
        return keys, self.values[layer].index_select(0, blocks)


class HeadStorage(KVStorage):
    """Storage with the tokens of a block side by side, head by head.

    A kernel that reads the keys of one head reads whole runs of memory.

    Attributes:
        keys: for each layer, [num_blocks, num_kv_heads, block_size, head_dim].
        values: for each layer, [num_blocks, num_kv_heads, block_size, value_dim].
    """

    def __init__(self, shape: CacheShape) -> None:
        heads = (shape.num_kv_heads, shape.block_size)
        super().__init__(shape, (*heads, shape.head_dim), (*heads, shape.value_dim))

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        blocks, places = slots // self.shape.block_size, slots % self.shape.block_size
        self.keys[layer][blocks, :, places] = key
        self.values[layer][blocks, :, places] = value


class UnitStorage(KVStorage):
    """Storage in which a block of one head is a unit that vectors and tiles read as it is.

    The layout is documented at `Cache` in kernels.hpp.

    Attributes:
        keys: for each layer, [num_blocks, num_kv_heads, key unit].
        values: for each layer, [num_blocks, num_kv_heads, value unit].
    """

    DTYPES: ClassVar = {torch.bfloat16: "bfloat16", torch.float32: "float32"}

    def __init__(self, shape: CacheShape) -> None:
        native = kernels()
        assert native is not None
        self._native = native
        super().__init__(
            shape,
            (shape.num_kv_heads, native.key_unit(self.DTYPES[shape.dtype], shape.head_dim)),
            (shape.num_kv_heads, native.value_unit(shape.value_dim)),
        )
        # Blocks are read in any order, which causes many TLB misses with small pages.
        for tensor in self._all:
            native.advise_huge(tensor)

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        values, rows = (self.values[layer], _rows(value)) if self.values else (None, None)
        self._native.store(self.keys[layer], values, slots, _rows(key), rows)

    def gather(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of whole blocks, in the shape of `TokenStorage.gather`."""
        shape = self.shape
        units = (len(blocks), shape.num_kv_heads)
        keys = self.keys[layer].index_select(0, blocks)
        pairs = 2 if shape.dtype == torch.bfloat16 else 1
        keys = keys.view(*units, -1, shape.block_size, pairs).permute(0, 3, 1, 2, 4).flatten(3)
        keys = keys[..., : shape.head_dim].contiguous()
        if shape.value_in_key:
            return keys, keys[..., : shape.value_dim]
        values = self.values[layer].index_select(0, blocks)
        values = values.view(*units, -1, shape.value_dim, pairs).permute(0, 2, 4, 1, 3)
        return keys, values.flatten(1, 2).contiguous()


def _rows(heads: Tensor) -> Tensor:
    """[T, heads, size] as [T, heads * size], copied if the numbers of a token are not adjacent."""
    rows = heads.flatten(1)
    return rows if rows.stride(1) == 1 else rows.contiguous()
