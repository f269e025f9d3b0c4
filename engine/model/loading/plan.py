"""Plan: a model as traced without its weights, and the memory for it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from engine.api.config import EngineConfig
from engine.batch.shape import ModelShape
from engine.cache.storage import cache_shapes
from engine.model.files import kept
from engine.model.files.checkpoint import CONFIG_FILE
from engine.model.files.compact import packed_saving
from engine.model.files.folder import max_positions
from engine.model.files.sizes import check_elements
from engine.model.files.stored import StoredWeight
from engine.model.loading.footprint import footprint_of
from engine.model.loading.source import Source, name_of
from engine.model.machine.device import free_memory, loading_dtype
from engine.model.machine.estimate import Numbers
from engine.model.machine.memory import MemoryNeeds, plan_memory
from engine.model.program.quantize import check_device
from engine.model.running.forward import pick_backend
from engine.model.tracing.trace import TracedModel, trace

# Positions of a model without attention, which has no limit.
_UNLIMITED = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A model as traced without its weights, and the memory for it.

    Attributes:
        dtype: the type of the weights in memory.
        latents: whether layers that cache latents store those.
        traced: its shape has the bytes that packed weights save once these are loaded.
        weights: the stored weights by the model's names.
        free: available bytes of the device.
        backend: the backend of attention.
        stays_packed: whether weights stay as they are stored, if kernels can multiply them so.
        envelope: what the memory is planned for.
    """

    source: Source
    dtype: torch.dtype
    latents: bool
    traced: TracedModel
    weights: tuple[StoredWeight, ...]
    free: int
    backend: str
    stays_packed: bool
    envelope: EngineConfig

    @classmethod
    def make(cls, source: Source, *, latents: bool = True) -> Plan:
        """Trace a model, and plan its memory.

        Raises:
            ModelError, InvalidConfigError: see `engine.serving.loading.ModelLoader`.
        """
        config_file, is_packed = source.folder / CONFIG_FILE, source.method is not None
        traced = _trace(source, source.dtype, latents=latents)
        check_elements(traced.num_elements, source.checkpoint, config_file, is_packed)
        smallest = EngineConfig(
            num_blocks=1,
            max_model_len=1,
            dtype=name_of(source.dtype),
            device=str(source.device),
            quantize=source.quantize,
        )
        weights, free = source.weights(), free_memory(source.device)
        check_device(smallest, traced.shape)
        backend = pick_backend(*cache_shapes(smallest, traced.shape))
        stays_packed = backend == "cpu" and source.quantize == "none"
        plan = cls(
            source=source,
            dtype=source.dtype,
            latents=latents,
            traced=traced,
            weights=weights,
            free=free,
            backend=backend,
            stays_packed=stays_packed,
            envelope=smallest,
        )
        return replace(plan, envelope=plan.size(backend))

    def by_torch(self) -> Plan:
        """The plan of the model as torch alone computes it."""
        source, dtype, traced = self.source, self.dtype, self.traced
        is_asked = source.request.dtype not in (None, "auto")
        if not is_asked and loading_dtype(dtype, source.device) != dtype:
            # torch would take seconds for a token.
            dtype = loading_dtype(dtype, source.device)
            traced = _trace(source, dtype, latents=self.latents)
        plan = replace(
            self,
            dtype=dtype,
            traced=traced,
            free=free_memory(source.device),
            backend="torch",
            stays_packed=False,
        )
        return replace(plan, envelope=plan.size("torch"))

    def settled(self, saved_bytes: int) -> Plan:
        """The plan of the loaded model, whose packed weights save some bytes."""
        shape = replace(self.shape, saved_bytes=saved_bytes)
        return replace(self, traced=replace(self.traced, shape=shape))

    def size(self, backend: str) -> EngineConfig:
        """The envelope that fits into the memory with the footprint of a backend."""
        source = self.source
        return plan_memory(
            source.request,
            self.needs,
            footprint_of(backend, source.device),
            device=str(source.device),
            dtype=name_of(self.dtype),
            quantize=source.quantize,
            free=self.free,
            share=source.share,
            host_free=free_memory(torch.device("cpu")),
        )

    @property
    def shape(self) -> ModelShape:
        """The model's dimensions."""
        return self.traced.shape

    @property
    def needs(self) -> MemoryNeeds:
        """The model's needs of device memory."""
        source, shape = self.source, self.shape
        positions = max_positions(source.config, source.folder) if shape.num_layers else _UNLIMITED
        return MemoryNeeds(
            name=source.entry.name,
            shape=shape,
            weight_bytes=self._weight_bytes,
            loading_bytes=self._loading_bytes,
            saved_bytes=self._saved_bytes,
            num_layers=self.traced.num_layers,
            layer_width=self.traced.layer_width,
            layer_experts=self.traced.layer_experts,
            max_positions=positions,
            context_length=source.entry.context_length,
        )

    @property
    def _weight_bytes(self) -> int:
        """Bytes of all weights in memory, where some stored ones may have no place."""
        held = self.traced.num_elements * self.dtype.itemsize
        if self.source.method is not None:
            return held
        return min(self.source.checkpoint.num_bytes_as(self.dtype.itemsize), held)

    @property
    def _loading_bytes(self) -> int:
        """Bytes of all weights during loading. Those that stay packed are never all unpacked at
        once.
        """
        if not self.stays_packed:
            return self._weight_bytes
        packed = [one for one in self.weights if one.kind]
        numbers = self.traced.num_elements - sum(math.prod(one.shape) for one in packed)
        return max(numbers, 0) * self.dtype.itemsize + sum(one.num_bytes for one in packed)

    @property
    def _saved_bytes(self) -> int:
        """Bytes saved by quantization: an estimate before it, exact afterwards."""
        if self.shape.saved_bytes:
            return self.shape.saved_bytes
        if self.source.quantize == "none":
            stored = ((one.kind, one.shape) for one in self.weights if self.stays_packed)
            return packed_saving(stored, self.dtype.itemsize)
        numbers = Numbers(self.traced.num_multiplied, self.traced.num_head)
        return numbers.saved(self.source.quantize, self.dtype.itemsize)


def _trace(source: Source, dtype: torch.dtype, *, latents: bool) -> TracedModel:
    """As `engine.model.tracing.trace.trace`, once for a configuration and a build."""

    def make() -> dict[str, Any]:
        return trace(source.model_class, source.part, dtype, latents=latents).to_json()

    config = source.part.to_json_string()
    facts = "trace", source.model_class.__name__, config, name_of(dtype), latents
    return TracedModel.from_json(kept.recall(facts, make))
