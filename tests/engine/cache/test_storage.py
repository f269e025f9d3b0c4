from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from engine.cache.storage import CacheShape, KVStorage, TokenStorage, UnitStorage

SHAPE = CacheShape(
    num_layers=3,
    num_blocks=5,
    block_size=4,
    num_kv_heads=2,
    head_dim=6,
    value_dim=3,
    dtype=torch.float32,
    device=torch.device("cpu"),
    num_host_blocks=4,
)


def make_storage() -> TokenStorage:
    return TokenStorage(SHAPE)


def make_unit_storage() -> UnitStorage:
    return UnitStorage(replace(SHAPE, block_size=16))


def make_gpu_storage() -> TokenStorage:
    return TokenStorage(replace(SHAPE, device=torch.device("cuda", 0)))


each = pytest.mark.parametrize(
    "make",
    [
        make_storage,
        pytest.param(make_unit_storage, marks=pytest.mark.needs("avx2")),
        pytest.param(make_gpu_storage, marks=pytest.mark.needs("gpu")),
    ],
)


def fill(storage: KVStorage) -> None:
    """Every token of every layer gets numbers of its own."""
    slots = torch.arange(5 * storage.shape.block_size, device=storage.shape.device)
    for layer in range(3):
        base = (1000 * layer + slots[:, None, None]).float()
        storage.write(layer, slots, base.expand(-1, 2, 6), -base.expand(-1, 2, 3))


def test_a_written_token_lies_in_its_slot_of_its_layer_only() -> None:
    storage = make_storage()
    storage.clear_blocks(range(5))
    key, value = torch.randn(2, 2, 6), torch.randn(2, 2, 3)
    storage.write(1, torch.tensor([9, 3]), key, value)

    assert torch.equal(storage.keys[1][2, 1], key[0])
    assert torch.equal(storage.keys[1][0, 3], key[1])
    assert torch.equal(storage.values[1][2, 1], value[0])
    assert torch.equal(storage.values[1][0, 3], value[1])
    assert storage.keys[1].count_nonzero() == key.numel()
    assert not storage.keys[0].any()
    assert not storage.values[2].any()


@pytest.mark.needs("avx2")
def test_a_unit_holds_a_head_of_a_block() -> None:
    storage = make_unit_storage()
    storage.clear_blocks(range(5))
    # As rotation leaves them: head by head.
    key, value = (torch.randn(2, 2, size).transpose(0, 1) for size in (6, 3))
    storage.write(1, torch.tensor([33, 3]), key, value)

    keys = storage.keys[1].view(5, 2, 6, 16)
    values = storage.values[1].view(5, 2, 16, 3)
    assert torch.equal(keys[2, :, :, 1], key[0])
    assert torch.equal(keys[0, :, :, 3], key[1])
    assert torch.equal(values[2, :, 1], value[0])
    assert torch.equal(values[0, :, 3], value[1])
    assert keys.count_nonzero() == key.numel()
    assert values.count_nonzero() == value.numel()
    assert not storage.keys[0].any()
    assert not storage.values[2].any()


def test_gather_returns_blocks_in_the_order_asked_for() -> None:
    storage = make_storage()
    fill(storage)
    key, value = storage.gather(2, torch.tensor([4, 0, 4]))
    assert key[:, :, 0, 0].tolist() == [
        [2016.0, 2017.0, 2018.0, 2019.0],
        [2000.0, 2001.0, 2002.0, 2003.0],
        [2016.0, 2017.0, 2018.0, 2019.0],
    ]
    assert torch.equal(value[..., 0], -key[..., 0])


@each
def test_values_that_are_in_their_keys_are_stored_once(make: Callable[[], KVStorage]) -> None:
    kind, shape = type(make()), make().shape
    storage = kind(replace(shape, value_in_key=True))  # type: ignore[call-arg]
    assert storage.values == ()
    assert storage.block_bytes == 3 * shape.block_size * 2 * 6 * 4
    fill(storage)
    before = [k.clone() for k in storage.keys]
    storage.copy_blocks([(0, 1)])
    storage.swap_out([(3, 1), (0, 2)])
    storage.clear_blocks([3, 0])
    storage.swap_in([(2, 4)])
    for layer in range(3):
        assert torch.equal(storage.keys[layer][[1, 4, 2]], before[layer][[0, 0, 2]])
        assert not storage.keys[layer][[0, 3]].any()


def test_values_in_their_keys_are_gathered_once() -> None:
    storage = TokenStorage(replace(SHAPE, value_in_key=True))
    fill(storage)
    keys, values = storage.gather(2, torch.tensor([4, 0]))
    assert torch.equal(keys, storage.keys[2][[4, 0]])
    assert torch.equal(values, keys[..., :3])
    assert values.data_ptr() == keys.data_ptr()


@each
def test_copy_moves_blocks_in_every_layer_as_if_at_once(make: Callable[[], KVStorage]) -> None:
    storage = make()
    fill(storage)
    before = [k.clone() for k in storage.keys], [v.clone() for v in storage.values]
    storage.copy_blocks([(0, 1), (1, 4)])

    for now, was in zip((storage.keys, storage.values), before, strict=True):
        for layer in range(3):
            assert torch.equal(now[layer][1], was[layer][0])
            assert torch.equal(now[layer][4], was[layer][1])
            assert torch.equal(now[layer][[0, 2, 3]], was[layer][[0, 2, 3]])


@each
def test_clear_zeroes_the_named_blocks_in_every_layer(make: Callable[[], KVStorage]) -> None:
    storage = make()
    fill(storage)
    before = [k.clone() for k in storage.keys]
    storage.clear_blocks([3, 1])

    for layer in range(3):
        assert not storage.keys[layer][[1, 3]].any()
        assert not storage.values[layer][[1, 3]].any()
        assert torch.equal(storage.keys[layer][[0, 2, 4]], before[layer][[0, 2, 4]])


@each
def test_blocks_come_back_from_the_host_as_they_went_there(make: Callable[[], KVStorage]) -> None:
    storage = make()
    fill(storage)
    before = [k.clone() for k in storage.keys], [v.clone() for v in storage.values]
    storage.swap_out([(3, 1), (0, 2)])
    storage.clear_blocks([3, 0])
    storage.swap_in([(2, 4), (1, 1)])

    for now, was in zip((storage.keys, storage.values), before, strict=True):
        for layer in range(3):
            assert torch.equal(now[layer][[4, 1, 2]], was[layer][[0, 3, 2]])
            assert not now[layer][[0, 3]].any()


@each
@pytest.mark.parametrize("blocks", [1, 2, 100])
def test_a_swap_of_any_length_goes_in_pieces(
    make: Callable[[], KVStorage], blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = make()
    fill(storage)
    row = 3 * (storage.keys[0][0].numel() + storage.values[0][0].numel()) * 4
    monkeypatch.setattr("engine.cache.storage.PIECE_BYTES", blocks * row + 1)
    before = [k.clone() for k in storage.keys]
    storage.swap_out([(0, 0), (1, 1), (2, 3), (4, 2)])
    storage.clear_blocks(range(5))
    storage.swap_in([(1, 0), (2, 1), (3, 2), (0, 3)])

    for layer in range(3):
        assert torch.equal(storage.keys[layer][:4], before[layer][[1, 4, 2, 0]])


@each
def test_the_rate_is_measured_and_leaves_the_blocks_alone(make: Callable[[], KVStorage]) -> None:
    storage = make()
    fill(storage)
    before = [k.clone() for k in storage.keys]
    assert storage.swap_rate() > 0
    assert all(torch.equal(a, b) for a, b in zip(storage.keys, before, strict=True))


def test_without_host_blocks_there_is_no_rate() -> None:
    assert TokenStorage(replace(SHAPE, num_host_blocks=0)).swap_rate() == 0.0


@each
def test_nothing_to_copy_or_clear_changes_nothing(make: Callable[[], KVStorage]) -> None:
    storage = make()
    fill(storage)
    before = [k.clone() for k in storage.keys]
    storage.copy_blocks([])
    storage.clear_blocks([])
    storage.swap_out([])
    storage.swap_in([])
    assert all(torch.equal(a, b) for a, b in zip(storage.keys, before, strict=True))
