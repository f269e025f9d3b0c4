"""ProgramForward: a model's forward pass by native code, verified when it is made."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.api.config import EngineConfig
from engine.api.status import OffPath
from engine.batch.shape import ModelShape
from engine.cache.storage import CacheShape, KVStorage, cache_shapes, places
from engine.model.attention.base import IntArray
from engine.model.attention.cpu_backend import CpuAttention
from engine.model.batch import PackedStep
from engine.model.program.build import Built, Pool, attach, build
from engine.model.program.by_torch import Between, set_apart, unpack, weights_kept
from engine.model.program.capture import NUM_SAMPLES, NUM_TOKENS, Capture
from engine.model.program.coded import Coded
from engine.model.program.find import find_graph
from engine.model.program.fuse import fuse
from engine.model.program.graph import ByTorch, Opaque
from engine.model.program.stage import Stage, num_of_tokens, segments
from engine.model.program.verify import MismatchError, Wrong, verify
from engine.model.prompts import MOST_LOGITS
from engine.model.state.modules import StateModules
from engine.native import kernels

logger = logging.getLogger(__name__)


class ProgramForward:
    """Runs a program of native kernels, during which the interpreter's lock is free.

    Attributes:
        opaque: names of the classes whose modules torch runs between stretches of the program.
        kept_bytes: of weights that no kernel reads, beyond what the kernels would have read.
    """

    def __init__(
        self,
        built: Built,
        native: ModuleType,
        opaque: tuple[str, ...],
        shape: ModelShape,
        looked_up: Tensor | None,
        states: StateModules | None = None,
        kept_bytes: int = 0,
    ) -> None:
        self.opaque = opaque
        self.kept_bytes = kept_bytes
        self._states = states
        self._native = native
        self._program = built.program
        self._logits = built.logits
        self._stages = built.stages
        self._segments = list(segments(built.stages))
        split = num_of_tokens(built.stages)
        self._before = list(segments(built.stages[:split]))
        self._behind = list(segments(built.stages[split:]))
        self._started: PackedStep | None = None
        self._places = places(shape)
        slots = None if states is None else states.slots
        self._between = Between(built.stages, self._places, slots)
        self._looked_up = None if looked_up is None else looked_up.numpy()

    @property
    def attention(self) -> str:
        """See `engine.model.forward.Forward`."""
        return CpuAttention().name

    @property
    def off_path(self) -> tuple[OffPath, ...]:
        """See `engine.model.forward.Forward`."""
        return self._between.off_path()

    @property
    def off_kernels(self) -> str:
        """See `engine.model.forward.Forward`."""
        return ""

    def profile(self) -> dict[str, tuple[int, float]]:
        """How often each kind of operation ran, and for how many seconds, since the last call."""
        costs: dict[str, tuple[int, float]] = self._program.profile()
        return costs

    def storage(self, shape: CacheShape) -> KVStorage:
        """See `engine.model.forward.Forward`."""
        return CpuAttention().storage(shape)

    def attach(self, *parts: KVStorage) -> None:
        """See `engine.model.forward.Forward`."""
        attach(self._program, Pool(parts, self._places))
        self._between.attach(parts)

    def copy_states(self, pairs: Sequence[tuple[int, int]]) -> None:
        """See `engine.model.forward.KeepsStates`."""
        assert self._states is not None
        self._states.slots.copy(pairs)

    def __call__(self, step: PackedStep) -> Tensor:
        """See `engine.model.forward.Forward`. The logits stay until the next call."""
        if self._states is not None:
            self._states.begin(step, self._logits.device)
        begun = perf_counter()
        self._run(self._segments, step)
        self._between.note(step, perf_counter() - begun)
        return self._logits[: len(step.last_tokens)]

    def start(self, step: PackedStep) -> None:
        """See `engine.model.forward.Forward`."""
        if self._states is not None:
            self._states.begin(step, self._logits.device)
        self._run(self._before, step)
        self._started = step

    def logits_of(self, tokens: IntArray) -> Tensor:
        """See `engine.model.forward.Forward`."""
        assert self._started is not None
        self._run(self._behind, replace(self._started, last_tokens=tokens))
        return self._logits[: len(tokens)]

    def _run(self, segments: Sequence[tuple[int, int, Stage | None]], step: PackedStep) -> None:
        ids = step.input_ids if self._looked_up is None else self._looked_up[step.input_ids]
        inputs = native_step(self._native, step, ids)
        for first, last, stage in segments:
            self._program.run(inputs, first, last)
            if stage is not None:
                self._between.run(stage, step, ids)

    def verify(self, recorded: Capture, block_size: int, dtype: torch.dtype) -> float:
        """Compare each operation with the recorded pass; returns the largest difference.

        Args:
            dtype: that the program computes in.

        Raises:
            MismatchError: a kernel computes something else than the model.
        """
        step, ids = _recorded_step(recorded, block_size), recorded.input_ids.numpy()
        inputs = native_step(self._native, step, ids)

        def run(stage: Stage, first: int, last: int) -> None:
            self._program.run(inputs, first, last)
            if isinstance(stage.operation, ByTorch):
                self._between.run(stage, step, ids)

        return verify(self._stages, run, dtype=dtype)


def native_step(native: ModuleType, step: PackedStep, ids: IntArray) -> Any:
    """A step's inputs for a program that looks up these ids."""
    return native.Step(
        ids,
        step.position_ids,
        step.slots,
        step.starts,
        step.counts,
        step.block_tables,
        step.last_tokens,
        step.index,
    )


def _recorded_step(recorded: Capture, block_size: int) -> PackedStep:
    """The recorded pass as a step: one sequence, in blocks 0, 1 and so on."""
    tokens, samples = len(recorded.input_ids), len(recorded.last_tokens)
    return PackedStep(
        input_ids=recorded.input_ids.numpy(),
        position_ids=recorded.position_ids.numpy(),
        index=np.zeros(1, np.int64),
        starts=np.zeros(1, np.int64),
        counts=np.full(1, tokens, np.int64),
        last_tokens=recorded.last_tokens.numpy(),
        sampling=np.zeros(samples, np.int64),
        lengths=np.full(samples, tokens),
        generations=np.zeros(samples, np.int64),
        slots=np.arange(tokens),
        block_tables=np.arange(-(-tokens // block_size), dtype=np.int64)[None],
    )


def make_program(
    model: PreTrainedModel,
    config: EngineConfig,
    shape: ModelShape,
    states: StateModules | None = None,
    coded: Coded | None = None,
    apart: Sequence[Wrong] = (),
) -> ProgramForward:
    """Turn a model into a program.

    Args:
        states: the modules that keep states, if there are any.
        coded: which of its parameters are quantized, if any.
        apart: the operations that torch is to compute by their definitions, because their kernels
            were found wrong when the same model was tried.

    Raises:
        UnreadableError: the model cannot be read; it is as it was.
        MismatchError: a kernel computes something else than the model. The model has lost weights
            and cannot be used any more.
    """
    native = kernels()
    assert native is not None
    compact = None if coded is None else coded.compact
    positions = max(config.max_model_len, NUM_TOKENS)
    graph, recorded = find_graph(model, shape, positions, states, compact=compact)
    graph = set_apart(fuse(graph), apart)
    kept_bytes = weights_kept(graph, coded)
    verified = replace(config, num_blocks=config.blocks_for(NUM_TOKENS), num_host_blocks=0)
    parts = [CpuAttention().storage(one) for one in cache_shapes(verified, shape)]
    if compact:
        unpack(graph, compact, parts[0].shape.dtype)
    modules = [one.module for one in graph.operations if isinstance(one, Opaque)]
    used = {type(module).__name__ for module in modules}
    if compact is not None:
        for module in modules:
            compact.keep(module)
    if states is not None:
        states.take_over(set(modules) & set(states.found))
    try:
        built = build(
            graph,
            model,
            native,
            Pool(parts, places(shape)),
            max_tokens=max(config.max_num_batched_tokens, NUM_TOKENS),
            max_samples=max(config.max_num_seqs, NUM_SAMPLES, MOST_LOGITS),
            states=None if states is None else states.slots,
            coded=coded,
        )
    except ValueError as error:
        raise MismatchError(f"a kernel does not take what the model gives it: {error}") from error
    forward = ProgramForward(
        built, native, tuple(sorted(used)), shape, graph.looked_up, states, kept_bytes
    )
    forward.attach(*parts)
    worst = forward.verify(recorded, config.block_size, parts[0].shape.dtype)
    logger.info(
        "%s runs as %d kernels%s; verified, the largest difference is %.2g",
        type(model).__name__,
        len(built.program),
        f" beside {', '.join(forward.opaque)}" if used else "",
        worst,
    )
    return forward
