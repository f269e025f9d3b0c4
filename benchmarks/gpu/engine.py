"""The engine over a random model: a runner with its graphs, and steps of decodes put to it."""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

import torch
from transformers import PreTrainedModel

from benchmarks.gpu.device import Device
from benchmarks.gpu.models import Shaped
from engine.api.config import BLOCK_SIZE, EngineConfig
from engine.api.knobs import Knobs
from engine.api.sampling import SamplingParams
from engine.api.status import ModelCard
from engine.batch.plan import NewSequence, Row, StepPlan
from engine.core.core import EngineCore
from engine.model.gpu.choosing import Chosen, clock_on
from engine.model.gpu.forward import GpuForward
from engine.model.gpu.ladder import ladder
from engine.model.gpu.overlapped import decode_alone, overlap_pays
from engine.model.gpu.runner import GpuRunner
from engine.model.gpu.stream import stream_on
from engine.model.running.forward import make_forward

GREEDY = SamplingParams(temperature=0)
WARM_UP = 4
# Left beside the pool, for graphs and for what an eager step takes.
_SPARE_BYTES = 3 << 30


@dataclass(frozen=True, slots=True)
class Started:
    """A runner, and what it took to start.

    Attributes:
        load_seconds: from a model to a verified program.
        capture_seconds, graph_bytes: of all graphs.
        chosen, choose_seconds: how products of few rows are computed, and what it took to find out.
        overlaps: whether launches start before the one before has ended.
    """

    runner: GpuRunner
    config: EngineConfig
    shaped: Shaped
    num_launches: int
    load_seconds: float
    capture_seconds: float
    graph_bytes: int
    chosen: list[Chosen]
    choose_seconds: float
    overlaps: bool

    def core(self, **knobs: object) -> EngineCore:
        """An engine core over the runner, by the wall clock."""
        card = ModelCard(self.shaped.name, "", 0, "bfloat16", "", "triton", 0, 0, 0)
        return EngineCore(
            config=self.config,
            runner=self.runner,
            shape=self.shaped.shape,
            card=card,
            key=self.shaped.name,
            eos_token_ids=frozenset(),
            knobs=Knobs(
                max_num_seqs=self.config.max_num_seqs,
                max_num_batched_tokens=self.config.max_num_batched_tokens,
                **knobs,  # type: ignore[arg-type]
            ),
            clock=time.perf_counter,
        )


def start(
    model: PreTrainedModel, shaped: Shaped, device: Device, *, seqs: int, tokens: int, longest: int
) -> Started:
    """Make a program of a model, which it takes over, and capture its graphs."""
    begun = time.perf_counter()
    config = EngineConfig(
        num_blocks=1,
        max_model_len=longest,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        dtype="bfloat16" if device.is_gpu else "float32",
        device=str(device.torch),
    )
    forward = make_forward(model, config, shaped.shape, "triton")
    assert isinstance(forward, GpuForward), "the model was not read as a program"
    gc.collect()
    load_seconds = time.perf_counter() - begun
    block = shaped.shape.kv_bytes_per_token * BLOCK_SIZE
    room = max(device.free_bytes() - _SPARE_BYTES, 64 * block)
    most = seqs * config.blocks_for(longest)
    config = replace(config, num_blocks=min(most, room // block))
    stream = stream_on(device.torch)
    begun = time.perf_counter()
    chosen = forward.choose(clock_on(stream)) if device.is_gpu else []
    choose_seconds = time.perf_counter() - begun

    def runner_for(config: EngineConfig) -> GpuRunner:
        return GpuRunner(forward, config, shaped.shape, stream)

    if device.is_gpu:
        forward.overlaps = overlap_pays(
            partial(decode_alone, forward, runner_for, config),
            torch.cuda.get_device_capability(device.torch),
            name=shaped.name,
        )
    runner = runner_for(config)
    free = device.free_bytes()
    begun = time.perf_counter()
    runner.capture(ladder(config))
    return Started(
        runner,
        config,
        shaped,
        forward.num_launches,
        load_seconds,
        time.perf_counter() - begun,
        free - device.free_bytes(),
        chosen,
        choose_seconds,
        forward.overlaps,
    )


@dataclass(frozen=True, slots=True)
class Decodes:
    """Median seconds of a step of decodes.

    Attributes:
        step: between the ends of two steps.
        device: that the device computed.
        host: that the host took to start one.
    """

    step: float
    device: float
    host: float


def decode(started: Started, sequences: int, context: int, steps: int) -> Decodes | None:
    """Decode with sequences whose contexts are said to be computed, so that nothing has to be
    prefilled; None if the pool is too small.
    """
    config = started.config
    last = context + WARM_UP + steps + 1
    each = config.blocks_for(last)
    if sequences * each > config.num_blocks or last > config.max_model_len:
        return None
    held = config.blocks_for(context)
    # Blocks of different sequences take turns, as they do in a pool that is in use.
    tables = [range(row, sequences * each, sequences) for row in range(sequences)]
    text = tuple(i % 97 for i in range(context + 1))
    new = tuple(
        NewSequence(row, text, len(text), GREEDY, 0, (), tuple(tables[row][:held]))
        for row in range(sequences)
    )
    handles: deque[object] = deque()
    ends, times = [], []
    for step in range(WARM_UP + steps):
        position = context + step
        needed = config.blocks_for(position + 1)
        rows = []
        for row in range(sequences):
            blocks = tuple(tables[row][held:needed])
            rows.append(Row(row, position, 1, blocks, True, False))
        held = needed
        plan = StepPlan(step + 1, tuple(rows), new=new if not step else ())
        handles.append(started.runner.start_step(plan))
        if len(handles) == started.runner.depth:
            times.append(started.runner.result(handles.popleft()).times)
            ends.append(time.perf_counter())
    while handles:
        started.runner.result(handles.popleft())
    release(started, range(sequences))
    gaps = [b - a for a, b in itertools.pairwise(ends)][WARM_UP - 1 :]
    times = times[WARM_UP:]
    return Decodes(
        statistics.median(gaps),
        statistics.median(one.forward for one in times),
        statistics.median(one.prepare for one in times),
    )


def release(started: Started, sequences: Iterable[int]) -> None:
    """Have the runner forget sequences. A core would tell it with its next step, if it had one."""
    gone = StepPlan(1, (), released=tuple(sequences))
    started.runner.result(started.runner.start_step(gone))


def close(started: Started) -> None:
    """Free the model, the pool and the graphs."""
    started.runner.close()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
