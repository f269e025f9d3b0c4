"""Attention by the native kernels, on the CPU."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from engine.api.errors import ModelError
from engine.batch.shape import ModelShape
from engine.cache.storage import CacheShape, UnitStorage
from engine.model.attention.base import StepContext
from engine.model.attention.params import AttentionParams
from engine.model.machine.memory import LargestStep
from engine.native import kernels


class CpuAttention:
    """Attention by the kernels of engine/native.

    It attends between the modules of a model whose forward pass cannot be read as a program. A
    program runs the same kernels itself; it only uses storage and name from here.
    """

    @staticmethod
    def why_not(shape: CacheShape) -> str:
        """Why a cache of this shape is not supported; empty if it is."""
        native = kernels()
        if native is None:
            return "this installation has no native kernels"
        if shape.device.type != "cpu":
            return f"the native kernels run on the CPU, not on {shape.device}"
        if shape.dtype not in UnitStorage.DTYPES:
            return f"the native kernels do not compute in {shape.dtype}"
        if shape.block_size != native.BLOCK:
            return f"the native kernels take blocks of {native.BLOCK}, not {shape.block_size}"
        return ""

    @staticmethod
    def step_bytes(shape: ModelShape, largest: LargestStep) -> int:
        """Most bytes for the attention of a step; it gathers no keys or values."""
        native = kernels()
        assert native is not None
        size: int = native.most_plan_bytes(
            largest.seqs,
            largest.tokens,
            largest.longest,
            shape.num_heads,
            shape.num_kv_heads,
            shape.value_dim,
        )
        return size

    @property
    def name(self) -> str:
        """See `AttentionBackend.name`. It includes the level of instructions."""
        native = kernels()
        assert native is not None
        return f"cpu ({native.level()})"

    def storage(self, shape: CacheShape) -> UnitStorage:
        """See `AttentionBackend.storage`."""
        if reason := self.why_not(shape):
            raise ModelError(reason)
        return UnitStorage(shape)

    def attend(
        self, query: Tensor, layer: int, context: StepContext, params: AttentionParams
    ) -> Tensor:
        """See `AttentionBackend.attend`."""
        native: Any = kernels()
        storage = context.storage
        tokens, heads, _ = query.shape
        output = query.new_empty(tokens, heads, storage.shape.value_dim)
        native.attend(
            output.flatten(1),
            query.flatten(1),
            storage.keys[layer],
            storage.values[layer] if storage.values else None,
            context.starts,
            context.counts,
            context.block_tables,
            heads,
            params.scaling,
            params.window or 0,
            params.softcap or 0.0,
            None if params.sinks is None else params.sinks.float(),
        )
        return output
