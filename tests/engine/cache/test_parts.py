"""Parts of a pool whose layers differ in their heads: a block is the same one in all of them."""

from __future__ import annotations

from dataclasses import replace

import torch

from engine.cache.parts import PoolParts
from engine.cache.storage import CacheShape, TokenStorage

SHAPE = CacheShape(
    num_layers=2,
    num_blocks=5,
    block_size=4,
    num_kv_heads=2,
    head_dim=6,
    value_dim=3,
    dtype=torch.float32,
    device=torch.device("cpu"),
    num_host_blocks=4,
)


def make() -> tuple[PoolParts, list[TokenStorage]]:
    """A pool whose blocks hold their own numbers in every layer."""
    parts = [TokenStorage(SHAPE), TokenStorage(replace(SHAPE, num_layers=1, num_kv_heads=1))]
    for part in parts:
        for tensors in (part.keys, part.values):
            for layer in tensors:
                layer.copy_(torch.arange(5.0).view(5, 1, 1, 1).expand_as(layer))
    return PoolParts(parts), parts


def held(parts: list[TokenStorage], block: int) -> set[float]:
    """The numbers that a block has in any layer of any part."""
    return {
        float(number)
        for part in parts
        for tensors in (part.keys, part.values)
        for layer in tensors
        for number in layer[block].flatten()
    }


def test_a_block_is_cleared_and_copied_in_all_parts() -> None:
    pool, parts = make()
    pool.clear_blocks([1])
    pool.copy_blocks([(4, 2)])
    assert [held(parts, block) for block in range(5)] == [{0.0}, {0.0}, {4.0}, {3.0}, {4.0}]


def test_a_block_is_swapped_in_all_parts() -> None:
    pool, parts = make()
    pool.swap_out([(3, 0)])
    pool.clear_blocks([3])
    pool.swap_in([(0, 1)])
    assert held(parts, 1) == {3.0}
    assert held(parts, 3) == {0.0}


def test_parts_are_swapped_one_after_the_other() -> None:
    pool, parts = make()
    rates = iter((10.0, 20.0))
    sizes = [part.block_bytes for part in parts]
    for part in parts:
        part.swap_rate = lambda: next(rates)  # type: ignore[method-assign]
    assert pool.swap_rate() == sum(sizes) / (sizes[0] / 10 + sizes[1] / 20)


def test_without_host_blocks_there_is_no_rate() -> None:
    assert PoolParts([TokenStorage(replace(SHAPE, num_host_blocks=0))]).swap_rate() == 0
