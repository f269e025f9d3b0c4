"""The pool's size, and refusals with numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.api.client import LoadRequest
from engine.api.config import EngineConfig
from engine.api.errors import InvalidConfigError, ModelError
from engine.batch.shape import ModelShape
from engine.cache.host import SWAP_BYTES
from engine.model.files.size_text import format_bytes
from engine.model.loading.footprint import footprint_of
from engine.model.machine.memory import Footprint, LargestStep, MemoryNeeds, plan_memory

GIB = 1 << 30

# Llama 3.1 8B in bfloat16: 16 GB of weights, 128 KiB of cache a token.
LLAMA = MemoryNeeds(
    name="llama",
    shape=ModelShape(
        num_params=8_030_261_248,
        num_active_params=6_979_321_856,
        hidden_size=4096,
        vocab_size=128_256,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        value_dim=128,
        windows=(None,) * 32,
        dtype_bytes=2,
    ),
    weight_bytes=16_060_522_496,
    loading_bytes=16_060_522_496,
    saved_bytes=0,
    num_layers=32,
    layer_width=14_336,
    layer_experts=0,
    max_positions=131_072,
    context_length=None,
)


BLOCK_BYTES = 16 * LLAMA.shape.kv_bytes_per_token


def plan(
    free: int,
    device: str = "cuda:0",
    share: float = 0.9,
    host_free: int = 500 * GIB,
    footprint: Footprint | None = None,
    needs: MemoryNeeds = LLAMA,
    **options: Any,
) -> EngineConfig:
    return plan_memory(
        LoadRequest("llama", **options),
        needs,
        footprint_of("torch", torch.device(device)) if footprint is None else footprint,
        device=device,
        dtype="bfloat16",
        quantize="none",
        free=free,
        share=share,
        host_free=host_free,
    )


def pool_bytes(config: EngineConfig) -> int:
    return config.num_slots * LLAMA.shape.kv_bytes_per_token


def largest(config: EngineConfig) -> LargestStep:
    return LargestStep(
        seqs=config.max_num_seqs,
        tokens=config.max_num_batched_tokens,
        longest=config.max_model_len,
    )


def needed(config: EngineConfig) -> int:
    """Bytes of weights, pool and largest step, computed by torch, and of what swapping takes."""
    footprint = footprint_of("torch", torch.device(config.device))
    step = footprint.step_bytes(LLAMA, largest(config))
    swapping = SWAP_BYTES if config.num_host_blocks else 0
    if config.device == "cpu":
        swapping += config.num_host_blocks * BLOCK_BYTES
    return LLAMA.weight_bytes + pool_bytes(config) + step + swapping


class Fixed:
    """A `Footprint` of given sizes."""

    def __init__(self, step: int, load: int) -> None:
        self._step, self._load = step, load

    def step_bytes(self, needs: MemoryNeeds, largest: LargestStep) -> int:
        return self._step

    def load_bytes(self, needs: MemoryNeeds, largest: LargestStep) -> int:
        return self._load


def test_a_gpu_is_filled_to_its_share() -> None:
    config = plan(80 * GIB)
    block = LLAMA.shape.kv_bytes_per_token * config.block_size
    assert 0 <= 0.9 * 80 * GIB - needed(config) < block
    assert config.max_model_len == 131_072
    assert (config.max_num_seqs, config.max_num_batched_tokens) == (256, 2048)
    assert (config.dtype, config.device) == ("bfloat16", "cuda:0")


def test_context_shrinks_to_what_the_pool_holds() -> None:
    config = plan(26 * GIB)
    assert 256 <= config.max_model_len < 131_072
    assert 0 <= config.num_slots - config.max_model_len < 16
    longer = replace(
        config, max_model_len=config.max_model_len + 16, num_blocks=config.num_blocks + 1
    )
    assert needed(config) <= 0.9 * 26 * GIB < needed(longer)


def test_the_pool_is_no_larger_than_the_largest_batch_can_fill() -> None:
    config = plan(80 * GIB, max_model_len=100, max_num_seqs=3)
    assert config.num_blocks == 3 * 7


def test_a_host_keeps_memory_for_others() -> None:
    config = plan(500 * GIB, device="cpu")
    assert 4 * GIB - 2 * 1024**2 < pool_bytes(config) <= 4 * GIB
    assert plan(500 * GIB, device="cpu", max_model_len=64).num_blocks == 32 * 4


def test_too_little_memory_is_refused_with_the_numbers() -> None:
    with pytest.raises(ModelError) as caught:
        plan(12 * GIB, device="cpu", max_model_len=1024, max_num_seqs=8)
    assert caught.value.message == (
        "llama does not fit on cpu: weights 14.96 GiB, largest step 693.6 MiB and a cache of 1024 "
        "tokens 128.0 MiB make 15.76 GiB; of 12.00 GiB free, 10.80 GiB may be used"
    )


def test_the_pool_takes_what_the_step_leaves() -> None:
    block = LLAMA.shape.kv_bytes_per_token * 16
    small, large = (plan(20 * GIB, footprint=Fixed(step, 0)) for step in (GIB, 2 * GIB))
    assert small.num_blocks - large.num_blocks == GIB // block


def test_loading_and_the_pool_share_memory_one_after_the_other() -> None:
    free = 20 * GIB
    room = int(0.9 * free) - LLAMA.weight_bytes
    assert plan(free, footprint=Fixed(GIB, room)) == plan(free, footprint=Fixed(GIB, 0))
    with pytest.raises(ModelError) as caught:
        plan(free, footprint=Fixed(GIB, 3 * GIB + (1 << 29)))
    assert caught.value.message == (
        "llama does not fit on cuda:0: weights 14.96 GiB and 3.50 GiB to load them make 18.46 GiB; "
        "of 20.00 GiB free, 18.00 GiB may be used"
    )


@pytest.mark.needs("avx2")
@pytest.mark.parametrize("length", [512, 8192, 131_072])
@pytest.mark.parametrize(("seqs", "tokens"), [(32, 512), (256, 2048)])
def test_native_kernels_need_less_than_torch(seqs: int, tokens: int, length: int) -> None:
    step = LargestStep(seqs=seqs, tokens=tokens, longest=length)
    native, reference = (
        footprint_of(backend, torch.device("cpu")).step_bytes(LLAMA, step)
        for backend in ("cpu", "torch")
    )
    assert native < reference


def test_explicit_pool_may_take_all_that_is_free() -> None:
    by_bytes = plan(26 * GIB, kv_memory=2 * GIB, max_model_len=2048, max_num_seqs=64)
    assert by_bytes.num_blocks == 2 * GIB // (16 * LLAMA.shape.kv_bytes_per_token) == 1024
    assert plan(26 * GIB, num_blocks=77, max_model_len=64).num_blocks == 77
    with pytest.raises(ModelError, match="does not fit"):
        plan(26 * GIB, kv_memory=20 * GIB)


@pytest.mark.parametrize(
    ("options", "param", "message"),
    [
        ({"max_model_len": 131_073}, "max_model_len", "llama allows 1 to 131072"),
        (
            {"num_blocks": 4, "max_model_len": 65},
            "max_model_len",
            "max_model_len is 65; a pool of 4 blocks allows 1 to 64",
        ),
        ({"num_blocks": 4, "kv_memory": 1 << 30}, "kv_memory", "both given; one is allowed"),
        ({"kv_memory": 1000}, "kv_memory", "kv_memory is 1000 bytes; it must be at least 2097152"),
        ({"num_blocks": 0}, "num_blocks", "num_blocks is 0; it must be at least 1"),
        ({"swap_memory": 99}, "swap_memory", "swap_memory is 99 bytes; it must be 0 or at least"),
        ({"swap_memory": -1}, "swap_memory", "swap_memory is -1 bytes; it must be 0 or at least"),
        ({"max_model_len": -5}, "max_model_len", "max_model_len is -5; it must be at least 1"),
        (
            {"max_num_seqs": 100, "max_num_batched_tokens": 50},
            "max_num_batched_tokens",
            "max_num_batched_tokens is 50; it must be at least max_num_seqs (100)",
        ),
    ],
)
def test_options_outside_their_range(options: dict[str, int], param: str, message: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        plan(80 * GIB, **options)
    assert caught.value.param == param
    assert message in caught.value.message


class TestSwapMemory:
    def test_a_gpu_swaps_to_as_much_host_memory_as_nobody_misses(self) -> None:
        assert plan(80 * GIB).num_host_blocks == 4 * GIB // BLOCK_BYTES
        assert plan(80 * GIB, host_free=6 * GIB).num_host_blocks == 6 * GIB // 4 // BLOCK_BYTES

    def test_no_more_than_the_pool_could_lose(self) -> None:
        config = plan(80 * GIB, max_model_len=100, max_num_seqs=3)
        assert config.num_host_blocks == config.num_blocks == 3 * 7

    def test_a_host_swaps_if_it_is_asked_to(self) -> None:
        """Its own pool may have the memory instead, and then nobody is preempted."""
        assert plan(500 * GIB, device="cpu").num_host_blocks == 0
        asked = plan(500 * GIB, device="cpu", swap_memory=GIB)
        assert asked.num_host_blocks == GIB // BLOCK_BYTES

    def test_what_is_stated_is_taken(self) -> None:
        assert plan(80 * GIB, swap_memory=0).num_host_blocks == 0
        stated = plan(80 * GIB, swap_memory=50 * GIB, max_model_len=100, max_num_seqs=3)
        assert stated.num_host_blocks == 50 * GIB // BLOCK_BYTES

    def test_more_than_the_host_has_is_refused_with_the_numbers(self) -> None:
        with pytest.raises(ModelError) as caught:
            plan(80 * GIB, swap_memory=9 * GIB, host_free=8 * GIB)
        told = "swap_memory takes 9.00 GiB of host memory, of which 8.00 GiB are free"
        assert caught.value.message == told

    def test_on_a_host_it_counts_beside_the_weights(self) -> None:
        with pytest.raises(ModelError) as caught:
            plan(18 * GIB, device="cpu", max_model_len=1024, max_num_seqs=8, swap_memory=GIB)
        assert caught.value.message == (
            "llama does not fit on cpu: weights 14.96 GiB, largest step 693.6 MiB, swapping 1.06 "
            "GiB and a cache of 1024 tokens 128.0 MiB make 16.82 GiB; of 18.00 GiB free, 16.20 GiB "
            "may be used"
        )


class TestStates:
    """A model that keeps 64 MiB of each sequence beside its cache."""

    def planned(self, free: int, **options: Any) -> EngineConfig:
        needs = replace(LLAMA, shape=replace(LLAMA.shape, state_bytes=64 << 20))
        return plan(free, needs=needs, **options)

    def test_sequences_and_prefixes_get_their_shares_of_what_the_weights_leave(self) -> None:
        config = self.planned(40 * GIB)
        spare = int(0.9 * 40 * GIB) - LLAMA.weight_bytes
        assert config.max_num_seqs == spare // 4 // (64 << 20)
        assert config.num_snapshots == spare // 8 // (64 << 20)
        assert config.num_host_blocks == 0

    def test_prefixes_are_at_most_four_for_each_sequence(self) -> None:
        config = self.planned(40 * GIB, max_num_seqs=4)
        assert (config.max_num_seqs, config.num_snapshots) == (4, 16)

    def test_a_stated_size_is_kept(self) -> None:
        assert self.planned(40 * GIB, snapshot_memory=5 * (64 << 20) + 1).num_snapshots == 5
        assert self.planned(40 * GIB, snapshot_memory=0).num_snapshots == 0

    def test_states_are_counted(self) -> None:
        few = self.planned(40 * GIB, max_num_seqs=4, snapshot_memory=0, max_model_len=4096)
        many = self.planned(40 * GIB, max_num_seqs=4, snapshot_memory=GIB, max_model_len=4096)
        assert many.num_blocks <= few.num_blocks
        with pytest.raises(ModelError, match=r"states of 500 sequences and 0 prefixes 31\.25 GiB"):
            self.planned(40 * GIB, max_num_seqs=500, snapshot_memory=0)

    @pytest.mark.parametrize(
        ("options", "param", "expected"),
        [
            ({"snapshot_memory": 1000}, "snapshot_memory", "must be 0 or at least 67108864, what"),
            ({"snapshot_memory": -1}, "snapshot_memory", "must be 0 or at least"),
            ({"swap_memory": GIB}, "swap_memory", "which are not swapped, so it must be 0"),
        ],
    )
    def test_what_is_out_of_range(self, options: dict[str, int], param: str, expected: str) -> None:
        with pytest.raises(InvalidConfigError, match=expected) as caught:
            self.planned(40 * GIB, **options)
        assert caught.value.param == param


def test_one_of_the_largest_batch_gives_way_to_the_other() -> None:
    assert plan(80 * GIB, max_num_seqs=4000).max_num_batched_tokens == 4000
    assert plan(80 * GIB, max_num_batched_tokens=64).max_num_seqs == 64


@given(
    free=st.integers(0, 200 * GIB),
    device=st.sampled_from(["cpu", "cuda:0"]),
    seqs=st.none() | st.integers(1, 2000),
    length=st.none() | st.integers(1, 131_072),
    swap=st.none() | st.integers(1, 9).map(lambda n: n * GIB),
)
def test_whatever_is_accepted_fits(
    free: int, device: str, seqs: int | None, length: int | None, swap: int | None
) -> None:
    options = {"max_num_seqs": seqs, "max_model_len": length, "swap_memory": swap}
    try:
        config = plan(free, device=device, **options)
    except ModelError:
        return
    assert needed(config) <= 0.9 * free
    assert config.max_model_len <= config.num_slots
    assert length is None or config.max_model_len == length


def test_sizes_for_people() -> None:
    assert format_bytes(1536 * 1024) == "1.5 MiB"
    assert format_bytes(3 * GIB // 2) == "1.50 GiB"
