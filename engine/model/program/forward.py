"""ProgramForward: a model's forward pass by native code, verified when it is made."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import ModuleType
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.api.config import EngineConfig
from engine.batch.shape import ModelShape
from engine.cache.storage import CacheShape, KVStorage
from engine.model.attention.cpu_backend import CpuAttention
from engine.model.batch import PackedStep
from engine.model.program.build import Built, Stage, attach, build, segments
from engine.model.program.capture import NUM_SAMPLES, NUM_TOKENS, AttentionCall, Capture, capture
from engine.model.program.fuse import fuse
from engine.model.program.graph import Graph, Opaque
from engine.model.program.read import read
from engine.model.program.unreadable import UnreadableError
from engine.model.program.verify import MismatchError, recorded_step, verify
from engine.native import kernels

logger = logging.getLogger(__name__)


class ProgramForward:
    """Runs a program of native kernels, during which the interpreter's lock is free.

    Attributes:
        opaque: names of the classes whose modules torch runs between stretches of the program.
    """

    def __init__(self, built: Built, native: ModuleType, opaque: tuple[str, ...]) -> None:
        self.opaque = opaque
        self._native = native
        self._program = built.program
        self._logits = built.logits
        self._segments = list(segments(built.stages))

    @property
    def attention(self) -> str:
        """See `engine.model.forward.Forward`."""
        return CpuAttention().name

    def profile(self) -> dict[str, tuple[int, float]]:
        """How often each kind of operation ran, and for how many seconds, since the last call."""
        costs: dict[str, tuple[int, float]] = self._program.profile()
        return costs

    def storage(self, shape: CacheShape) -> KVStorage:
        """See `engine.model.forward.Forward`."""
        return CpuAttention().storage(shape)

    def attach(self, storage: KVStorage) -> None:
        """See `engine.model.forward.Forward`."""
        attach(self._program, storage)

    def __call__(self, step: PackedStep) -> Tensor:
        """See `engine.model.forward.Forward`. The logits stay until the next call."""
        inputs = native_step(self._native, step)
        for first, last, opaque in self._segments:
            self._program.run(inputs, first, last)
            if opaque is not None:
                run_opaque(opaque, step)
        return self._logits[: len(step.last_tokens)]


def native_step(native: ModuleType, step: PackedStep) -> Any:
    """A step's inputs for a program."""
    return native.Step(
        step.input_ids,
        step.position_ids,
        step.slots,
        step.starts,
        step.counts,
        step.block_tables,
        step.last_tokens,
    )


def run_opaque(stage: Stage, step: PackedStep) -> None:
    """Run a module of the model on a step's rows, if there are any."""
    assert isinstance(stage.operation, Opaque)
    rows = len(step.last_tokens if stage.operation.out.per_sample else step.input_ids)
    if not rows:
        return
    output = stage.operation.module(stage.given[0][None, :rows])
    stage.out[:rows] = (output[0] if isinstance(output, tuple) else output)[0]


def make_program(
    model: PreTrainedModel, config: EngineConfig, cache: CacheShape, shape: ModelShape
) -> ProgramForward:
    """Turn a model into a program.

    Raises:
        UnreadableError: the model cannot be read; it is as it was.
        MismatchError: a kernel computes something else than the model. The model has lost weights
            and cannot be used any more.
    """
    native = kernels()
    assert native is not None
    graph, recorded = find_graph(model, shape, max(config.max_model_len, NUM_TOKENS))
    graph = fuse(graph)
    used = {type(one.module).__name__ for one in graph.operations if isinstance(one, Opaque)}
    try:
        built = build(
            graph,
            model,
            native,
            CpuAttention().storage(replace(cache, num_blocks=config.blocks_for(NUM_TOKENS))),
            max_tokens=max(config.max_num_batched_tokens, NUM_TOKENS),
            max_samples=max(config.max_num_seqs, NUM_SAMPLES),
        )
    except ValueError as error:
        raise MismatchError(f"a kernel does not take what the model gives it: {error}") from error
    forward = ProgramForward(built, native, tuple(sorted(used)))
    worst = verify(built, recorded_step(native, recorded, config.block_size))
    logger.info(
        "%s runs as %d kernels%s; verified, the largest difference is %.2g",
        type(model).__name__,
        len(built.program),
        f" beside {', '.join(forward.opaque)}" if used else "",
        worst,
    )
    return forward


def find_graph(
    model: PreTrainedModel, shape: ModelShape, max_positions: int
) -> tuple[Graph, Capture]:
    """What a model computes, and the pass that was recorded to find out.

    Modules that our kernels do not compute stay as they are. They are the smallest ones that hold
    what cannot be read, and all others of their classes. None of them may hold attention.

    Raises:
        UnreadableError: something cannot be read and lies in no such module.
    """
    opaque: tuple[type[nn.Module], ...] = ()
    while True:
        recorded = capture(model, shape, frozenset(opaque), max_positions)
        try:
            return read(recorded, frozenset(opaque), max_positions), recorded
        except UnreadableError as error:
            opaque += (_next_opaque(recorded, error, opaque),)


def _next_opaque(
    recorded: Capture, error: UnreadableError, opaque: tuple[type[nn.Module], ...]
) -> type[nn.Module]:
    attending = {
        type(module)
        for call in recorded.calls
        if isinstance(call.target, AttentionCall)
        for module in call.scope
    }
    for module in reversed(error.scope):
        if type(module) not in opaque and type(module) not in attending:
            return type(module)
    raise error
