"""GpuForward: a model's forward pass by launches, verified when it is made."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.api.config import EngineConfig
from engine.api.status import OffPath
from engine.batch.shape import ModelShape
from engine.cache.storage import CacheShape, HeadStorage, KVStorage, cache_shapes, places
from engine.model.attention.base import IntArray
from engine.model.attention.batch import PackedRows, PackedStep
from engine.model.attention.triton_backend import TritonAttention, programs_on, ways_of
from engine.model.gpu.choosing import Candidates, Chosen, Clock, choose
from engine.model.gpu.inputs import UPDATE, InputLayout, Int32Array, StepInputs, StepSize
from engine.model.gpu.program import GpuProgram
from engine.model.gpu.resident import Resident
from engine.model.program.by_torch import off_path, set_apart
from engine.model.program.capture import NUM_SAMPLES, NUM_TOKENS, Capture
from engine.model.program.find import find_graph
from engine.model.program.fuse import fuse
from engine.model.program.graph import Operation
from engine.model.program.opaque import Opaque
from engine.model.program.operations.attend import Attend
from engine.model.program.operations.kerneled import ByTorch
from engine.model.program.stage import num_of_tokens
from engine.model.program.unreadable import UnreadableError
from engine.model.program.verify import MismatchError, Wrong, mismatch, verify
from engine.model.step.prompts import MOST_LOGITS
from engine.model.step.sending import send
from engine.triton.product import strips

logger = logging.getLogger(__name__)

# The rows of the block tables for verifying the recorded pass: its tokens are stored through one,
# and attend through the other.
_VERIFIED_ROWS = 2


class GpuForward:
    """Runs a program of launches, on the current stream.

    Attributes:
        opaque: names of the modules' classes and the functions that torch runs between segments of
            the program.
        resident: what stays on the device from step to step.
        overlaps: whether the launches of a runner's steps overlap, see `engine.triton.overlap`.
    """

    def __init__(
        self, program: GpuProgram, resident: Resident, opaque: tuple[str, ...], programs: int
    ) -> None:
        self.opaque = opaque
        self.resident = resident
        self.overlaps = False
        self._program = program
        self._programs = programs
        split = num_of_tokens(program.stages)
        self._split = program.stages[split].first
        self._begun: StepInputs[Tensor] | None = None

    @property
    def attention(self) -> str:
        """See `engine.model.running.forward.Forward`."""
        return TritonAttention().name

    @property
    def off_path(self) -> tuple[OffPath, ...]:
        """See `engine.model.running.forward.Forward`. Its share of a step is not measured."""
        return off_path(stage.operation for stage in self._program.stages)

    @property
    def off_kernels(self) -> str:
        """See `engine.model.running.forward.Forward`."""
        return ""

    @property
    def num_launches(self) -> int:
        """Launches of a step of many rows, opaque operations counted as one each."""
        return self._program.num_launches

    @property
    def logits(self) -> Tensor:
        """The logits of the last step: [most rows that sample, vocab_size] float32, contiguous."""
        return self._program.logits

    def storage(self, shape: CacheShape) -> KVStorage:
        """See `engine.model.running.forward.Forward`."""
        return TritonAttention().storage(shape)

    def attach(self, *parts: KVStorage) -> None:
        """See `engine.model.running.forward.Forward`."""
        self.resident.pools = [cast(HeadStorage, part) for part in parts]

    def size_of(self, step: PackedRows) -> StepSize:
        """The size of a step without padding."""
        chunks = any((step.counts > kind.tiles[0]).any() for kind in self._program.kinds)
        return StepSize(len(step.input_ids), len(step.last_tokens), chunks)

    def layout(self, size: StepSize, fields: int) -> InputLayout:
        """The layout of the inputs of a step of this size.

        Args:
            fields: words that the sampler reads of a row.

        Raises:
            ValueError: the step is larger than the program's buffers.
        """
        self._program.check(size.tokens, size.samples)
        return InputLayout(
            size,
            self._program.kinds,
            rows=len(self.resident.block_tables),
            programs=self._programs,
            fields=fields,
            block_size=self.resident.block_size,
        )

    def choose(self, clock: Clock, candidates: Candidates = strips) -> list[Chosen]:
        """Choose how products of few rows are computed from now on.

        Args:
            clock: measures launches on the forward pass's device.
            candidates: as in `engine.model.gpu.choosing.choose`.
        """
        return choose(self._program.products, clock, candidates)

    def run(self, inputs: StepInputs[Tensor]) -> Tensor:
        """Launch a step.

        Returns:
            [S, vocab_size] float32, contiguous and valid until the next step.
        """
        self._program.run(inputs)
        return self._program.logits[: len(inputs.last_tokens)]

    def begin(self, inputs: StepInputs[Tensor]) -> None:
        """Launch a step without its logits, which `finish` then computes for any of its tokens."""
        self._program.run(inputs, 0, self._split)
        self._begun = inputs

    def finish(self, last_tokens: Tensor) -> Tensor:
        """Launch the rest of the step, for some of its tokens, [S] int32.

        Returns:
            as `run`.
        """
        assert self._begun is not None
        self._program.run(replace(self._begun, last_tokens=last_tokens), self._split)
        return self._program.logits[: len(last_tokens)]

    def logits_of(self, tokens: IntArray) -> Tensor:
        """See `engine.model.running.forward.Forward`."""
        return self.finish(send(tokens.astype(np.int32), self.resident.latest.device))

    def __call__(self, step: PackedStep) -> Tensor:
        """See `engine.model.running.forward.Forward`. The logits stay until the next call."""
        return self.run(self._inputs(step))

    def start(self, step: PackedStep) -> None:
        """See `engine.model.running.forward.Forward`."""
        self.begin(self._inputs(step))

    def _inputs(self, step: PackedStep) -> StepInputs[Tensor]:
        """The inputs of a single step, after writing its block tables to the device."""
        tables = self.resident.block_tables
        rows, blocks = step.block_tables.shape
        tables[:rows, :blocks] = torch.from_numpy(step.block_tables).to(tables)
        layout = self.layout(self.size_of(step), 0)
        words = np.empty(layout.num_words, np.int32)
        layout.fill(words, step, np.arange(rows), _nothing(len(step.last_tokens)), _no_updates())
        inputs: StepInputs[Tensor] = layout.over(torch.from_numpy(words).to(tables.device))
        return inputs


def grouped_products_wait(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch's grouped products of experts copy each expert's number of rows to the host and
    loop over all experts, so that no graph can hold them (pytorch issue 169970). Those that do not
    are in bfloat16, for Hopper and data-center Blackwell. Triton's interpreter has neither.
    """
    if device.type != "cuda":
        return True
    return dtype != torch.bfloat16 or torch.cuda.get_device_capability(device)[0] not in (9, 10)


def make_gpu_program(
    model: PreTrainedModel,
    config: EngineConfig,
    shape: ModelShape,
    apart: Sequence[Wrong] = (),
) -> GpuForward:
    """Turn a model on a GPU into a program.

    Args:
        apart: as `engine.model.program.forward.make_program` takes it.

    Raises:
        UnreadableError: the model cannot be read; it is as it was.
        MismatchError: a kernel computes something different from the model. The model has lost
            weights and cannot be used any more.
    """
    max_positions = max(config.max_model_len, NUM_TOKENS)
    parts = cache_shapes(config, shape)
    device, dtype = parts[0].device, parts[0].dtype
    graph, recorded = find_graph(
        model, shape, max_positions, with_experts=grouped_products_wait(device, dtype)
    )
    if graph.looked_up is not None:
        raise UnreadableError("some of its tokens are looked up by the ids of others")
    attending = [one for one in graph.operations if isinstance(one, Attend)]
    if any(one.query_norm or one.key_norm for one in attending):
        raise UnreadableError("it norms queries or keys that were rotated")
    graph = set_apart(fuse(graph), apart)
    if any(
        isinstance(one, ByTorch) and isinstance(one.operation, Attend) for one in graph.operations
    ):
        raise MismatchError(str(mismatch(apart)))
    used = {one.name for one in graph.operations if isinstance(one, Opaque)}
    rows = max(config.max_num_seqs, _VERIFIED_ROWS)
    blocks = config.blocks_for(max_positions)
    resident = Resident(
        torch.zeros(rows, blocks, dtype=torch.int32, device=device),
        torch.zeros(rows, dtype=torch.int32, device=device),
        places(shape),
    )
    programs = programs_on(device, shape.num_kv_heads, ways_of(parts[0]))
    program = GpuProgram(
        graph,
        model,
        resident,
        dtype=dtype,
        programs=programs,
        max_tokens=max(config.max_num_batched_tokens, NUM_TOKENS),
        max_samples=max(config.max_num_seqs, NUM_SAMPLES, MOST_LOGITS),
    )
    forward = GpuForward(program, resident, tuple(sorted(used)), programs)
    worst = _verify(forward, program, recorded, parts)
    logger.info(
        "%s runs as %d launches%s; verified, the largest difference is %.2g",
        type(model).__name__,
        program.num_launches,
        f" beside {', '.join(forward.opaque)}" if used else "",
        worst,
    )
    return forward


def _verify(
    forward: GpuForward, program: GpuProgram, recorded: Capture, parts: Sequence[CacheShape]
) -> float:
    """Compare each operation with the recorded pass; returns the largest difference.

    The positions of the recorded tokens are far apart. So the rotation's own keys go to a block
    that nothing reads, and the recorded ones are stored one after the other.
    """
    num_blocks = -(-NUM_TOKENS // parts[0].block_size)
    pools = [
        HeadStorage(replace(part, num_blocks=num_blocks + 1, num_host_blocks=0)) for part in parts
    ]
    forward.attach(*pools)
    resident = forward.resident
    tables = resident.block_tables
    tables[0] = num_blocks
    tables[1, :num_blocks] = torch.arange(num_blocks)
    layout = forward.layout(StepSize(NUM_TOKENS, NUM_SAMPLES, chunks=True), 0)
    words = np.empty(layout.num_words, np.int32)
    tokens = np.arange(NUM_TOKENS)
    step = PackedStep(
        input_ids=recorded.input_ids.cpu().numpy(),
        position_ids=recorded.position_ids.cpu().numpy(),
        index=np.ones(1, np.int64),
        starts=np.zeros(1, np.int64),
        counts=np.full(1, NUM_TOKENS),
        last_tokens=recorded.last_tokens.cpu().numpy(),
        sampling=np.ones(NUM_SAMPLES, np.int64),
        lengths=np.full(NUM_SAMPLES, NUM_TOKENS),
        generations=np.zeros(NUM_SAMPLES, np.int64),
        slots=tokens,
        block_tables=np.zeros((1, 1), np.int64),
    )
    layout.fill(words, step, step.index, _nothing(NUM_SAMPLES), _no_updates())
    inputs = layout.over(torch.from_numpy(words).to(tables.device))
    inputs.rows.zero_()
    slots = torch.from_numpy(tokens).to(tables.device)

    def restore(attend: Operation) -> None:
        if not isinstance(attend, Attend) or attend.key is None or attend.value is None:
            return
        by_head = (NUM_TOKENS, attend.kv_heads, -1)
        key, value = attend.rotated[1].reshape(by_head), attend.value.reference.reshape(by_head)
        part, place = resident.places[attend.layer]
        pools[part].write(place, slots, key, value)

    with torch.inference_mode():
        worst = verify(
            program.stages, lambda stage, first, last: program.run(inputs, first, last), restore
        )
    resident.pools = ()
    tables.zero_()
    return worst


def _nothing(rows: int) -> Int32Array:
    return np.empty((rows, 0), np.int32)


def _no_updates() -> Int32Array:
    return np.empty((0, len(UPDATE)), np.int32)
