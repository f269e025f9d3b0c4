"""TritonAttention: attention by the Triton kernels, on a GPU."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.api.errors import ModelError
from engine.batch.shape import ModelShape
from engine.cache.storage import CacheShape, HeadStorage
from engine.model.attention.base import StepContext
from engine.model.attention.params import AttentionParams
from engine.model.machine.memory import LargestStep
from engine.triton.interpreter import is_interpreted
from engine.triton.ways import Way, Ways, ways_for
from engine.triton.work import (
    ITEM,
    MERGE,
    WorkList,
    lay_out,
    most_slots,
)

if TYPE_CHECKING:
    from engine.triton.attention import Pieces

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MAX_HEAD_DIM = 256


@dataclass(frozen=True, slots=True)
class _Layout:
    block_tables: Tensor
    pieces: tuple[Pieces, ...]


class TritonAttention:
    """Attention by the kernels of engine/triton, which read the paged cache in place."""

    @staticmethod
    def why_not(shape: CacheShape) -> str:
        """Why a cache of this shape is not supported; empty if it is."""
        if importlib.util.find_spec("triton") is None:
            return "this installation has no triton"
        if shape.device.type != "cuda" and not is_interpreted():
            return f"the Triton kernels run on a GPU, not on {shape.device}"
        if shape.dtype not in DTYPES:
            return f"the Triton kernels do not compute in {shape.dtype}"
        if max(shape.head_dim, shape.value_dim) > MAX_HEAD_DIM:
            return f"the Triton kernels take heads of at most {MAX_HEAD_DIM} numbers"
        if shape.value_in_key:
            return "the Triton kernels take values beside their keys"
        return ""

    @staticmethod
    def step_bytes(shape: ModelShape, largest: LargestStep, device: torch.device) -> int:
        """Most bytes for the attention of a step: output, parts and work lists."""
        dtype = torch.float32 if shape.dtype_bytes == 4 else torch.bfloat16
        ways = ways_on(device, max(shape.head_dim, shape.value_dim), dtype)
        programs = programs_on(device, shape.num_kv_heads, ways)
        _, large = ways.of(shape.num_heads // shape.num_kv_heads)
        slots = most_slots(programs)
        parts = slots * shape.num_kv_heads * large.rows * 4
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
        from engine.triton.attention import paged_attention

        tokens, heads, head_dim = query.shape
        shape = context.storage.shape
        groups = heads // shape.num_kv_heads
        layout = context.layouts.get((params.window, groups))
        if layout is None:
            layout = _lay_out(context, params.window, groups)
            context.layouts[params.window, groups] = layout
        # The stride of a single token may be any number, and some would make a kernel compile
        # again.
        if query.stride(2) != 1 or (tokens == 1 and query.stride(0) != heads * head_dim):
            query = query.contiguous().view(tokens, heads, head_dim)
        output = query.new_empty(tokens, heads, shape.value_dim)
        # Kernels run on the current GPU.
        with torch.cuda.device_of(query):  # type: ignore[no-untyped-call]
            for pieces in layout.pieces:
                paged_attention(
                    output,
                    query,
                    context.storage.keys[layer],
                    context.storage.values[layer],
                    pieces,
                    layout.block_tables,
                    scaling=params.scaling,
                    softcap=params.softcap,
                    window=params.window,
                    sinks=params.sinks,
                )
        return output


def ways_on(device: torch.device, head_dim: int, dtype: torch.dtype) -> Ways:
    """The tiles and stages of attention on a device (`engine.triton.ways.ways_for`)."""
    capability = 0
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        capability = 10 * major + minor
    return ways_for(capability, head_dim, dtype.itemsize)


def ways_of(shape: CacheShape) -> Ways:
    """The tiles and stages of attention over a cache of this shape."""
    return ways_on(shape.device, max(shape.head_dim, shape.value_dim), shape.dtype)


def programs_on(device: torch.device, kv_heads: int, ways: Ways) -> int:
    """Number of items that fill the device once, with a program of each for each key head."""
    processors = 1
    if device.type == "cuda":
        processors = torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, ways.programs * processors // kv_heads)


def _lay_out(context: StepContext, window: int | None, groups: int) -> _Layout:
    """The work lists of a step, for layers with this window and so many query heads a key head."""
    shape = context.storage.shape
    device, ways = shape.device, ways_of(shape)
    works = lay_out(
        context.starts,
        context.counts,
        tiles=ways.tokens(groups),
        window=window,
        programs=programs_on(device, shape.num_kv_heads, ways),
    )
    pieces = tuple(
        _send(work, way, shape)
        for work, way in zip(works, ways.of(groups), strict=True)
        if len(work.items)
    )
    tables = torch.from_numpy(context.block_tables).to(device, torch.int32)
    return _Layout(tables, pieces)


def _send(work: WorkList, way: Way, shape: CacheShape) -> Pieces:
    from engine.triton.attention import Pieces

    items, merges = (torch.from_numpy(one).to(shape.device) for one in (work.items, work.merges))
    places = (work.num_slots, shape.num_kv_heads, way.rows)
    parts, states = (
        torch.empty(*places, size, dtype=torch.float32, device=shape.device)
        for size in (shape.value_dim, 2)
    )
    return Pieces(way, items, merges, parts, states)
