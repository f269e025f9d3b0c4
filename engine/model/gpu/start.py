"""Start: from a forward pass on a GPU to a runner with its pool and its graphs."""

from __future__ import annotations

from functools import partial

import torch

from engine.api.config import EngineConfig
from engine.batch.shape import ModelShape
from engine.model.gpu.choosing import clock_on
from engine.model.gpu.forward import GpuForward
from engine.model.gpu.ladder import ladder
from engine.model.gpu.overlapped import decode_alone, overlap_pays
from engine.model.gpu.runner import GpuRunner
from engine.model.gpu.sizing import CudaMemory, sized
from engine.model.gpu.stream import Stream, stream_on
from engine.model.machine.device import with_swap
from engine.model.machine.memory import PoolBounds
from engine.serving.loading import Progress


def runner_with_graphs(
    forward: GpuForward, config: EngineConfig, shape: ModelShape, stream: Stream | None = None
) -> GpuRunner:
    """A runner of just this envelope.

    Args:
        stream: of the forward pass's device; None is a new one.
    """
    runner = GpuRunner(forward, config, shape, stream or stream_on(torch.device(config.device)))
    runner.capture(ladder(config))
    return runner


def start_runner(
    forward: GpuForward,
    envelope: EngineConfig,
    shape: ModelShape,
    bounds: PoolBounds,
    progress: Progress,
    *,
    name: str,
    left: int,
    swap_is_asked: bool,
) -> tuple[GpuRunner, EngineConfig]:
    """Choose how products are computed and whether launches overlap, size the pool, and capture the
    graphs.

    Args:
        envelope: as it was planned before the model was loaded.
        bounds: of the pool.
        progress: called after each graph.
        name: of the model, for messages.
        left: bytes of the GPU that must stay free.
        swap_is_asked: as `with_swap` takes it.

    Returns:
        the runner, and the envelope that it serves.

    Raises:
        ModelError: the smallest pool does not fit.
    """
    device = torch.device(envelope.device)
    stream = stream_on(device)

    def runner_for(config: EngineConfig) -> GpuRunner:
        return GpuRunner(forward, config, shape, stream)

    if device.type == "cuda":
        progress("choosing how products of few rows are computed")
        forward.choose(clock_on(stream))
        progress("measuring whether launches may overlap")
        forward.overlaps = overlap_pays(
            partial(decode_alone, forward, runner_for, envelope),
            torch.cuda.get_device_capability(device),
            name=name,
        )
        progress("measuring what steps and CUDA graphs take")
        memory = CudaMemory(device)
        envelope = sized(
            envelope, runner_for, memory, bounds, name=name, budget=memory.free() - left
        )
    runner, envelope = with_swap(runner_for, envelope, is_asked=swap_is_asked)
    runner.capture(ladder(envelope), progress)
    return runner, envelope
