"""Attention by the Triton kernels, on a GPU."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.api.errors import ModelError
from engine.batch.shape import ModelShape
from engine.cache.storage import CacheShape, HeadStorage
from engine.model.attention.base import StepContext
from engine.model.attention.params import AttentionParams
from engine.model.memory import LargestStep
from engine.triton.work import ITEM, KEYS_AT_ONCE, MERGE, WorkList, cut, most_slots

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MAX_HEAD_DIM = 256
# Rows of a tile, where a token has a row for each query head of a key head: a product of matrices
# needs 16, and 64 keep a prefill's keys in use without spilled registers.
SMALL_TILE, LARGE_TILE = 16, 64
# Programs for each multiprocessor: so many fit by their registers on sm_90, at head dimension 128.
PROGRAMS_EACH = 3


@dataclass(frozen=True, slots=True)
class _Pieces:
    """A work list on the device.

    Attributes:
        tile: height of its tiles, in rows.
        items, merges: as in `WorkList`.
    """

    tile: int
    items: Tensor
    merges: Tensor
    num_slots: int


@dataclass(frozen=True, slots=True)
class _Layout:
    block_tables: Tensor
    pieces: tuple[_Pieces, ...]


class TritonAttention:
    """Attention by the kernels of engine/triton, which read the paged cache as it lies."""

    @staticmethod
    def why_not(shape: CacheShape) -> str:
        """Why a cache of this shape cannot be served; empty if it can."""
        if importlib.util.find_spec("triton") is None:
            return "this installation has no triton"
        if shape.device.type != "cuda" and not _is_interpreted():
            return f"the Triton kernels run on a GPU, not on {shape.device}"
        if shape.dtype not in DTYPES:
            return f"the Triton kernels do not compute in {shape.dtype}"
        if max(shape.head_dim, shape.value_dim) > MAX_HEAD_DIM:
            return f"the Triton kernels take heads of at most {MAX_HEAD_DIM} numbers"
        return ""

    @staticmethod
    def step_bytes(shape: ModelShape, largest: LargestStep, device: torch.device) -> int:
        """Most bytes that the attention of a step takes: output, parts and work lists."""
        programs = _programs(device, shape.num_kv_heads)
        groups = shape.num_heads // shape.num_kv_heads
        slots = most_slots(programs)
        parts = slots * shape.num_kv_heads * max(LARGE_TILE, _tile_of(groups)) * 4
        output = largest.tokens * shape.num_heads * shape.value_dim * shape.dtype_bytes
        lists = (largest.tokens + 2 * slots) * (len(ITEM) + len(MERGE)) * 4
        return output + 2 * parts * (shape.value_dim + 2) + lists + largest.seqs * largest.longest

    @property
    def name(self) -> str:
        """See `AttentionBackend.name`."""
        return "triton"

    def storage(self, shape: CacheShape) -> HeadStorage:
        """See `AttentionBackend.storage`."""
        if reason := self.why_not(shape):
            raise ModelError(reason)
        return HeadStorage(shape)

    def attend(
        self, query: Tensor, layer: int, context: StepContext, params: AttentionParams
    ) -> Tensor:
        """See `AttentionBackend.attend`."""
        tokens, heads, _ = query.shape
        shape = context.storage.shape
        groups = heads // shape.num_kv_heads
        layout = context.layouts.get((params.window, groups))
        if layout is None:
            layout = _lay_out(context, params.window, groups)
            context.layouts[params.window, groups] = layout
        if query.stride(2) != 1:
            query = query.contiguous()
        output = query.new_empty(tokens, heads, shape.value_dim)
        # Kernels are started on the current GPU.
        with torch.cuda.device_of(query):  # type: ignore[no-untyped-call]
            for pieces in layout.pieces:
                _attend(output, query, layer, context, params, layout, pieces)
        return output


def _attend(
    output: Tensor,
    query: Tensor,
    layer: int,
    context: StepContext,
    params: AttentionParams,
    layout: _Layout,
    pieces: _Pieces,
) -> None:
    """Attend by one work list, and merge what it left in parts."""
    from engine.triton import attention as kernels

    shape = context.storage.shape
    kv_heads, value_dim = shape.num_kv_heads, shape.value_dim
    places = (pieces.num_slots, kv_heads, pieces.tile)
    parts = query.new_empty(*places, value_dim, dtype=torch.float32)
    states = query.new_empty(*places, 2, dtype=torch.float32)
    sinks = query if params.sinks is None else params.sinks
    tokens, heads, head_dim = query.shape
    # The stride of a single token may be any number, and some would have a kernel compiled anew.
    token_stride = query.stride(0) if tokens > 1 else heads * head_dim
    common: dict[str, Any] = {
        "KV_HEADS": kv_heads,
        "GROUPS": heads // kv_heads,
        "VALUE_DIM": value_dim,
        "PADDED_VALUE": _padded(value_dim),
        "TILE": pieces.tile,
        "HAS_SINKS": params.sinks is not None,
    }
    kernels.attend[len(pieces.items), kv_heads](
        output,
        parts,
        states,
        query,
        context.storage.keys[layer],
        context.storage.values[layer],
        sinks,
        pieces.items,
        layout.block_tables,
        params.scaling,
        params.softcap or 0.0,
        params.window or 0,
        token_stride,
        query.stride(1),
        layout.block_tables.stride(0),
        HEAD_DIM=head_dim,
        PADDED_HEAD=_padded(head_dim),
        BLOCK_SIZE=shape.block_size,
        KEYS=KEYS_AT_ONCE,
        HAS_SOFTCAP=params.softcap is not None,
        HAS_WINDOW=params.window is not None,
        UPCAST=_is_interpreted(),
        num_warps=warps_of(pieces.tile),
        **common,
    )
    if len(pieces.merges):
        kernels.merge[len(pieces.merges), kv_heads](
            output, parts, states, sinks, pieces.merges, **common
        )


def _lay_out(context: StepContext, window: int | None, groups: int) -> _Layout:
    """The work lists of a step, for layers with this window and so many query heads a key head."""
    shape = context.storage.shape
    programs = _programs(shape.device, shape.num_kv_heads)
    small = _tile_of(groups)
    large = max(LARGE_TILE, small)
    fits = context.counts <= small // groups
    pieces = []
    for tile, chosen in ((small, fits), (large, ~fits)):
        if chosen.any():
            work = cut(
                context.starts,
                context.counts,
                rows=chosen.nonzero()[0],
                tile=tile // groups,
                window=window,
                programs=programs,
            )
            pieces.append(_send(work, tile, shape.device))
    tables = torch.from_numpy(context.block_tables).to(shape.device, torch.int32)
    return _Layout(tables, tuple(pieces))


def _send(work: WorkList, tile: int, device: torch.device) -> _Pieces:
    items, merges = (torch.from_numpy(array).to(device) for array in (work.items, work.merges))
    return _Pieces(tile, items, merges, work.num_slots)


def _programs(device: torch.device, kv_heads: int) -> int:
    """How many items fill the device once, if each has a program for each key head."""
    processors = 1
    if device.type == "cuda":
        processors = torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, PROGRAMS_EACH * processors // kv_heads)


def _tile_of(groups: int) -> int:
    """The height of a tile that has a token at least."""
    return max(SMALL_TILE, _padded(groups))


def warps_of(tile: int) -> int:
    """Warps of a program. A large tile would spill registers with four."""
    return 4 if tile < LARGE_TILE else 8


def _padded(size: int) -> int:
    return max(16, 1 << (size - 1).bit_length())


def _is_interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on tensors in main memory."""
    from triton import knobs

    interpreted: bool = knobs.runtime.interpret
    return interpreted
