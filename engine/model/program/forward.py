"""ProgramForward: a model's forward pass in native code, verified when it is made."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
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
from engine.model.attention.batch import PackedStep
from engine.model.attention.cpu_backend import CpuAttention
from engine.model.attention.interface import Expansions
from engine.model.program.arena import Arena
from engine.model.program.build import Built, Pool, attach, build
from engine.model.program.by_torch import Between, set_apart, unpack, weights_kept
from engine.model.program.capture import NUM_SAMPLES, NUM_TOKENS, Capture, recorded_inputs
from engine.model.program.coded import Coded
from engine.model.program.find import find_graph
from engine.model.program.fuse import fuse
from engine.model.program.graph import Graph
from engine.model.program.opaque import Opaque
from engine.model.program.operations.kerneled import ByTorch
from engine.model.program.saved import SavedGraph, restore_graph, save_graph
from engine.model.program.stage import Stage, num_of_tokens, segments
from engine.model.program.verify import MismatchError, Wrong, difference, verify
from engine.model.state.modules import StateModules
from engine.model.step.prompts import MOST_LOGITS
from engine.native import kernels

logger = logging.getLogger(__name__)

# Tolerance between the logits of a saved graph and its original ones: the same kernels sum in
# another order with more threads.
_SAME = 0.01


class ProgramForward:
    """Runs a program of native kernels, without the interpreter's lock.

    Attributes:
        opaque: names of the modules' classes and the functions that torch runs between segments of
            the program.
        kept_bytes: bytes of weights that no kernel reads, beyond those that kernels would need.
        saved: the graph, with the program's logits of the recorded pass; None if the graph cannot
            be saved.
        pieces: its packed weights (`engine.model.program.arena.Arena.pieces`).
    """

    saved: SavedGraph | None = None
    pieces: Sequence[Tensor | None] = ()

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
    def num_kernels(self) -> int:
        """Number of instructions of the program."""
        return len(self._program)

    @property
    def attention(self) -> str:
        """See `engine.model.running.forward.Forward`."""
        return CpuAttention().name

    @property
    def off_path(self) -> tuple[OffPath, ...]:
        """See `engine.model.running.forward.Forward`."""
        return self._between.off_path()

    @property
    def off_kernels(self) -> str:
        """See `engine.model.running.forward.Forward`."""
        return ""

    def profile(self) -> dict[str, tuple[int, float]]:
        """How often each kind of operation ran, and for how many seconds, since the last call."""
        costs: dict[str, tuple[int, float]] = self._program.profile()
        return costs

    def storage(self, shape: CacheShape) -> KVStorage:
        """See `engine.model.running.forward.Forward`."""
        return CpuAttention().storage(shape)

    def attach(self, *parts: KVStorage) -> None:
        """See `engine.model.running.forward.Forward`."""
        attach(self._program, Pool(parts, self._places))
        self._between.attach(parts)

    def copy_states(self, pairs: Sequence[tuple[int, int]]) -> None:
        """See `engine.model.running.forward.KeepsStates`."""
        assert self._states is not None
        self._states.slots.copy(pairs)

    def __call__(self, step: PackedStep) -> Tensor:
        """See `engine.model.running.forward.Forward`. The logits are valid until the next call."""
        if self._states is not None:
            self._states.begin(step, self._logits.device)
        begun = perf_counter()
        self._run(self._segments, step)
        self._between.note(step, perf_counter() - begun)
        return self._logits[: len(step.last_tokens)]

    def start(self, step: PackedStep) -> None:
        """See `engine.model.running.forward.Forward`."""
        if self._states is not None:
            self._states.begin(step, self._logits.device)
        self._run(self._before, step)
        self._started = step

    def logits_of(self, tokens: IntArray) -> Tensor:
        """See `engine.model.running.forward.Forward`."""
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
            dtype: type of the program.

        Raises:
            MismatchError: a kernel computes something different from the model.
        """
        inputs = recorded.input_ids, recorded.position_ids, recorded.last_tokens
        step, ids = recorded_step(inputs, block_size), recorded.input_ids.numpy()
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


def recorded_step(inputs: tuple[Tensor, Tensor, Tensor], block_size: int) -> PackedStep:
    """The recorded pass as a step: one sequence, in blocks 0, 1 and so on."""
    input_ids, position_ids, last_tokens = (one.numpy() for one in inputs)
    tokens, samples = len(input_ids), len(last_tokens)
    return PackedStep(
        input_ids=input_ids,
        position_ids=position_ids,
        index=np.zeros(1, np.int64),
        starts=np.zeros(1, np.int64),
        counts=np.full(1, tokens, np.int64),
        last_tokens=last_tokens,
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
    expansions: Expansions | None = None,
) -> ProgramForward:
    """Convert a model to a program.

    Args:
        states: the modules that keep states, if there are any.
        coded: its quantized parameters, if any.
        apart: operations that torch computes by their definitions, because their kernels were wrong
            in an earlier attempt with this model.
        expansions: expansions by layer number, of the layers that store latents.

    Raises:
        UnreadableError: the model cannot be read; it is unchanged.
        MismatchError: a kernel computes something different from the model. The model has lost
            weights and cannot be used any more.
    """
    compact = None if coded is None else coded.compact
    positions = max(config.max_model_len, NUM_TOKENS)
    graph, recorded = find_graph(
        model, shape, positions, states, compact=compact, expansions=expansions
    )
    graph = fuse(graph)
    saved = None if compact is None or states is not None else save_graph(graph, compact)
    replays = [one.replay for one in graph.operations if isinstance(one, Opaque)]
    modules = [module for one in replays for module in one.modules]
    if compact is not None:
        for module in modules:
            compact.unpack_module(module)
    if states is not None:
        states.wrap(set(modules) & set(states.found))
    parameters = list(model.parameters())
    forward, dtype = _built(graph, parameters, config, shape, states, coded, apart)
    del parameters
    worst = forward.verify(recorded, config.block_size, dtype)
    logger.info(
        "%s runs as %d kernels%s; verified, the largest difference is %.2g",
        type(model).__name__,
        forward.num_kernels,
        f" beside {', '.join(forward.opaque)}" if forward.opaque else "",
        worst,
    )
    if saved is not None:
        step = recorded_step(recorded_inputs(shape.vocab_size, positions), config.block_size)
        forward.saved = replace(saved, logits=forward(step).clone())
    return forward


def restore_program(
    saved: SavedGraph,
    weights: Mapping[str, Tensor],
    config: EngineConfig,
    shape: ModelShape,
    coded: Coded,
    apart: Sequence[Wrong],
    arena: Arena,
    *,
    verify: bool,
) -> ProgramForward:
    """Restore the program of a graph saved at an earlier loading.

    Args:
        weights: the stored weights, by name.
        coded, apart: see `make_program`.
        arena: packs the weights, or has packed ones.
        verify: whether the program must reproduce the logits of that time. It need not where the
            packed weights are those of a program that did: a pass takes 0.2 of 0.9 s of a load
            (135M parameters, AVX2).

    Raises:
        Exception: the graph does not match these weights, is broken, or computes other logits.
    """
    graph = restore_graph(saved, weights)
    forward, _ = _built(graph, list(weights.values()), config, shape, None, coded, apart, arena)
    if verify:
        positions = max(config.max_model_len, NUM_TOKENS)
        step = recorded_step(recorded_inputs(shape.vocab_size, positions), config.block_size)
        got, expected = forward(step), saved.logits
        if got.shape != expected.shape or not difference(got, expected) <= _SAME:
            raise MismatchError("the graph gives other logits than before")
    logger.info("the model runs as %d kernels, as it did before", forward.num_kernels)
    return forward


def _built(
    graph: Graph,
    parameters: Iterable[Tensor],
    config: EngineConfig,
    shape: ModelShape,
    states: StateModules | None,
    coded: Coded | None,
    apart: Sequence[Wrong],
    arena: Arena | None = None,
) -> tuple[ProgramForward, torch.dtype]:
    """A program attached to a pool for the recorded pass, and its type.

    Raises:
        MismatchError: a kernel does not support its inputs.
    """
    native = kernels()
    assert native is not None
    graph = set_apart(graph, apart)
    arena = arena or Arena(native)
    kept_bytes = weights_kept(graph, coded)
    small = replace(config, num_blocks=config.blocks_for(NUM_TOKENS), num_host_blocks=0)
    parts = [CpuAttention().storage(one) for one in cache_shapes(small, shape)]
    dtype = parts[0].shape.dtype
    if coded is not None:
        unpack(graph, coded.compact, dtype)
    used = {one.name for one in graph.operations if isinstance(one, Opaque)}
    try:
        built = build(
            graph,
            parameters,
            native,
            Pool(parts, places(shape)),
            max_tokens=max(config.max_num_batched_tokens, NUM_TOKENS),
            max_samples=max(config.max_num_seqs, NUM_SAMPLES, MOST_LOGITS),
            states=None if states is None else states.slots,
            coded=coded,
            arena=arena,
        )
    except ValueError as error:
        raise MismatchError(f"a kernel does not take what the model gives it: {error}") from error
    forward = ProgramForward(
        built, native, tuple(sorted(used)), shape, graph.looked_up, states, kept_bytes
    )
    forward.attach(*parts)
    forward.pieces = arena.pieces
    return forward, dtype
