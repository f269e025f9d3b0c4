"""The pool is sized from what is left of a device, here a made-up one, when all else is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.client import LoadRequest
from engine.api.config import EngineConfig
from engine.api.errors import ModelError
from engine.model.gpu.inputs import StepSize
from engine.model.gpu.ladder import Rungs, ladder
from engine.model.gpu.sizing import sized
from engine.model.loading.footprint import footprint_of
from engine.model.machine.memory import MemoryNeeds, PoolBounds, plan_memory, pool_bounds
from tests.engine.model.machine.test_memory import LLAMA

GIB = 1 << 30
BLOCK = 2 << 20
ENVELOPE = EngineConfig(
    num_blocks=7, max_model_len=8192, max_num_seqs=64, max_num_batched_tokens=2048, device="cuda:0"
)
BOUNDS = PoolBounds(least=16, most=100_000, block_bytes=BLOCK)


@dataclass
class FakeDevice:
    """A GPU, and what serving takes of it.

    Attributes:
        buffers: bytes of a runner beside its pool.
        step: bytes that the largest step has for a while.
        shared, graph: bytes of the first graph, and of each further one.
    """

    total: int
    buffers: int = 300 << 20
    step: int = 500 << 20
    shared: int = 64 << 20
    graph: int = 2 << 20
    taken: int = 0
    step_now: int = 0
    num_runners: int = 0

    def free(self) -> int:
        return self.total - self.taken

    def peak(self, work: Callable[[], object]) -> int:
        work()
        return self.step_now


@dataclass
class FakeRunner:
    device: FakeDevice
    config: EngineConfig
    has_shared: bool = False

    def __post_init__(self) -> None:
        self.own = self.device.buffers + self.config.num_blocks * BLOCK
        self.device.taken += self.own
        self.device.num_runners += 1

    def __del__(self) -> None:
        self.device.taken -= self.own
        self.device.num_runners -= 1

    def try_largest(self) -> None:
        self.device.step_now = self.device.step

    def capture(self, sizes: Sequence[StepSize]) -> None:
        taken = len(sizes) * self.device.graph
        if not self.has_shared:
            taken += self.device.shared - self.device.graph
            self.has_shared = True
        self.own += taken
        self.device.taken += taken


def size(
    device: FakeDevice, bounds: PoolBounds = BOUNDS, left: int = 0, length: int = 8192
) -> EngineConfig:
    return sized(
        replace(ENVELOPE, max_model_len=length),
        lambda config: FakeRunner(device, config),
        device,
        bounds,
        name="llama",
        budget=device.free() - left,
    )


@given(
    total=st.integers(4 * GIB, 80 * GIB),
    buffers=st.integers(0, GIB),
    step=st.integers(0, GIB),
    graph=st.integers(1 << 20, 8 << 20),
    left=st.integers(0, GIB),
)
def test_pool_steps_and_graphs_fit_and_little_is_left_unused(
    total: int, buffers: int, step: int, graph: int, left: int
) -> None:
    device = FakeDevice(total, buffers=buffers, step=step, graph=graph)
    envelope = size(device, left=left)
    assert device.num_runners == 0, "the trial is over"
    runner = FakeRunner(device, envelope)
    runner.capture(ladder(envelope))
    free = device.free() - step
    assert free >= left
    assert envelope.num_blocks == BOUNDS.most or free - left < 2 * BLOCK + 3
    assert envelope.max_model_len == min(8192, envelope.num_blocks * envelope.block_size)


def test_a_pool_is_never_larger_than_the_largest_batch_can_use() -> None:
    assert size(FakeDevice(80 * GIB), replace(BOUNDS, most=900)).num_blocks == 900


def test_what_does_not_fit_is_said_with_the_numbers() -> None:
    with pytest.raises(ModelError) as caught:
        size(FakeDevice(700 << 20))
    message = caught.value.message
    for part in ("llama does not fit on cuda:0", "700.0 MiB", "300.0 MiB", "500.0 MiB", "lower"):
        assert part in message
    assert "a cache of 256 tokens 32.0 MiB" in message


def test_a_pool_that_was_asked_for_is_given_whole_or_refused() -> None:
    asked = PoolBounds(1000, 1000, BLOCK)
    assert size(FakeDevice(4 * GIB), asked).num_blocks == 1000
    with pytest.raises(ModelError, match="a cache of 16000 tokens"):
        size(FakeDevice(2 * GIB), asked)


def test_sequences_become_shorter_where_the_pool_is_small() -> None:
    envelope = size(FakeDevice((1 << 30) + (200 << 20)))
    assert envelope.max_model_len == envelope.num_blocks * 16 < 8192


NEEDS: MemoryNeeds = LLAMA


@pytest.mark.parametrize(
    ("options", "least", "most"),
    [
        ({}, 16, 256 * 8192),
        ({"max_model_len": 4096}, 256, 256 * 256),
        ({"num_blocks": 500}, 500, 500),
        ({"kv_memory": 600 << 20}, 300, 300),
    ],
)
def test_the_bounds_are_what_was_asked_for(options: dict[str, int], least: int, most: int) -> None:
    import torch

    request = LoadRequest("llama", **options)  # type: ignore[arg-type]
    envelope = plan_memory(
        request,
        NEEDS,
        footprint_of("torch", torch.device("cpu")),
        device="cuda:0",
        dtype="bfloat16",
        quantize="none",
        free=80 * GIB,
        share=0.9,
        host_free=0,
    )
    bounds = pool_bounds(request, NEEDS, envelope)
    assert (bounds.least, bounds.most) == (least, most)
    assert bounds.block_bytes == BLOCK


@given(
    tokens=st.integers(1, 1200),
    samples=st.integers(0, 300),
    chunks=st.booleans(),
    most=st.sampled_from([1, 3, 64, 256]),
)
def test_the_smallest_graph_with_room_is_taken(
    tokens: int, samples: int, chunks: bool, most: int
) -> None:
    config = replace(ENVELOPE, max_num_seqs=most)
    step = StepSize(tokens, min(samples, tokens, most), chunks)
    sizes = ladder(config)
    assert len(sizes) == len(set(sizes)) < 60
    found = Rungs(sizes).fit(step)
    fitting = [
        one
        for one in sizes
        if one.tokens >= step.tokens and one.samples >= step.samples and one.chunks >= step.chunks
    ]
    if found is None:
        assert not fitting
        assert tokens > 1024 or (not chunks and tokens > most)
    else:
        assert found in fitting
        assert found.tokens == min(one.tokens for one in fitting)
    if step.tokens == step.samples and not chunks:
        assert found is not None
        assert found.tokens - tokens < max(8, tokens)
