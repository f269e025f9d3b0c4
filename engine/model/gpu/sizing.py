"""Sizing: gives the pool the memory that is actually free once the rest of a model is on its GPU.

The memory of CUDA's context, cuBLAS, the kernels' code and graphs is not known beforehand, so it is
measured with a pool of one block.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import torch

from engine.api.config import EngineConfig
from engine.api.errors import ModelError
from engine.cache.host import SWAP_BYTES
from engine.model.files.size_text import format_bytes
from engine.model.gpu.inputs import StepSize
from engine.model.gpu.ladder import ladder
from engine.model.machine.memory import PoolBounds

logger = logging.getLogger(__name__)

# A driver takes memory for graphs in pieces of 2 MB, so that a single graph may seem to take none.
_LEAST_GRAPH_BYTES = 256 << 10


class DeviceMemory(Protocol):
    """The memory of a GPU."""

    def free(self) -> int:
        """Free bytes, after unused ones were returned."""
        ...

    def peak(self, work: Callable[[], object]) -> int:
        """Most additional bytes that some work uses at any time."""
        ...


class CudaMemory:
    """The memory of a GPU, by the driver and torch's allocator."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def free(self) -> int:
        """See `DeviceMemory.free`."""
        gc.collect()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self._device)
        return free

    def peak(self, work: Callable[[], object]) -> int:
        """See `DeviceMemory.peak`."""
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        work()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device) - before


class Tried(Protocol):
    """A runner over a pool of one block (`engine.model.gpu.runner.GpuRunner`)."""

    def try_largest(self) -> None:
        """Launch the largest step, all of it padding, and wait for its end."""
        ...

    def capture(self, sizes: Sequence[StepSize]) -> None:
        """Capture graphs."""
        ...


def sized(
    envelope: EngineConfig,
    try_out: Callable[[EngineConfig], Tried],
    memory: DeviceMemory,
    bounds: PoolBounds,
    *,
    name: str,
    budget: int,
) -> EngineConfig:
    """An envelope with the largest pool that fits. Sequences become shorter if it is small.

    Args:
        envelope: as it was planned before the model was loaded.
        try_out: makes a runner for an envelope.
        name: of the model, for messages.
        budget: how many of the free bytes may be used.

    Raises:
        ModelError: the smallest pool does not fit; the sentence has the numbers.
    """
    before = memory.free()
    runner = try_out(replace(envelope, num_blocks=1, num_host_blocks=0))
    step = memory.peak(runner.try_largest)
    kept = max(before - memory.free() - bounds.block_bytes, 0)
    graphs = _graph_bytes(runner, memory, ladder(envelope))
    del runner
    swap = SWAP_BYTES if envelope.num_host_blocks else 0
    spare = max(budget - kept - step - graphs - swap, 0)
    num_blocks = min(bounds.most, spare // bounds.block_bytes)
    logger.info(
        "%s, measured: buffers %s, largest step %s, CUDA graphs %s, left for the KV pool %s",
        name,
        *map(format_bytes, (kept, step, graphs, spare)),
    )
    if num_blocks < bounds.least:
        raise ModelError(
            f"{name} does not fit on {envelope.device}: of {format_bytes(budget)} left beside its "
            f"weights, buffers take {format_bytes(kept)}, the largest step {format_bytes(step)}, "
            f"CUDA graphs {format_bytes(graphs)} and a cache of "
            f"{bounds.least * envelope.block_size} tokens "
            f"{format_bytes(bounds.least * bounds.block_bytes)}; lower max_num_seqs, "
            "max_num_batched_tokens, max_model_len or the pool"
        )
    length = min(envelope.max_model_len, num_blocks * envelope.block_size)
    return replace(envelope, num_blocks=num_blocks, max_model_len=length)


def _graph_bytes(runner: Tried, memory: DeviceMemory, sizes: Sequence[StepSize]) -> int:
    """The bytes of all graphs. The first one takes the memory that they share."""
    free = memory.free()
    runner.capture(sizes[:1])
    first, free = free - memory.free(), memory.free()
    tried = sizes[-3:]  # small ones have as many launches as large ones
    runner.capture(tried)
    each = max((free - memory.free()) // len(tried), _LEAST_GRAPH_BYTES)
    return max(first, each) + (len(sizes) - 1) * each
