"""Pins: prefixes that are never evicted, over a cache alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine.api.config import EngineConfig
from engine.api.telemetry import BlockChange
from engine.batch.plan import Request
from engine.cache.manager import KVCache
from engine.core.pins import Pins
from tests.support.harness import compute, let_go, make_request


def make_pins(num_blocks: int = 8, max_model_len: int = 16) -> tuple[KVCache, Pins]:
    config = EngineConfig(
        num_blocks=num_blocks, block_size=4, max_model_len=max_model_len, max_num_seqs=4
    )
    cache = KVCache(config, "key")
    return cache, Pins(cache, config)


def blocks(pins: Pins) -> list[tuple[str, int, int]]:
    """Name, number of blocks and number of computed blocks of each pin."""
    return [(pin.name, pin.blocks, pin.computed) for pin in pins.views(prefix_caching=True)]


def error(pins: Pins, name: str) -> str:
    return next(pin.error for pin in pins.views(prefix_caching=True) if pin.name == name)


def fill(cache: KVCache, ordinal: int) -> None:
    """Allocate every available block, and free them all again."""
    count = cache.pool.num_available * 4
    request = make_request(ordinal, range(1000 * ordinal, 1000 * ordinal + count))
    compute(cache, request, count)
    let_go(cache, request)


def run(cache: KVCache, ordinal: int, tokens: Sequence[int]) -> Request:
    request = make_request(ordinal, tokens)
    compute(cache, request, len(tokens))
    return request


def test_a_pinned_prefix_is_of_those_without_a_salt() -> None:
    cache, pins = make_pins(num_blocks=32)
    pins.pin("system", list(range(8)))
    for ordinal, salt in enumerate(("a", ""), start=1):
        request = make_request(ordinal, range(11), cache_salt=salt)
        compute(cache, request, 11)
        let_go(cache, request)
        assert [computed for _, _, computed in blocks(pins)] == [0 if salt else 2]


@pytest.mark.parametrize("when", ["before", "while it runs", "cached"])
def test_a_pinned_prefix_survives_pressure(when: str) -> None:
    """Its two full blocks, whenever it was pinned; the partial last one has no name."""
    cache, pins = make_pins()
    if when == "before":
        pins.pin("system", range(10))
        assert blocks(pins) == [("system", 2, 0)]
    request = run(cache, 1, range(10))
    if when == "while it runs":
        pins.pin("system", range(10))
    let_go(cache, request)
    if when == "cached":
        pins.pin("system", range(10))
    for ordinal in (2, 3):
        fill(cache, ordinal)
    assert blocks(pins) == [("system", 2, 2)]
    assert len(cache.match(make_request(9, range(11)))) == 2
    assert (cache.pool.num_available, cache.pool.num_pinned) == (6, 2)
    assert cache.pool.copy().states.count("p") == 2


def test_others_are_evicted() -> None:
    cache, pins = make_pins()
    pins.pin("system", range(8))
    let_go(cache, run(cache, 1, range(8)))
    let_go(cache, run(cache, 2, range(100, 108)))
    fill(cache, 3)
    assert cache.match(make_request(9, range(100, 109))) == []


def test_let_go_it_can_be_evicted() -> None:
    cache, pins = make_pins()
    pins.pin("system", range(8))
    let_go(cache, run(cache, 1, range(8)))
    pins.unpin("system")
    assert (blocks(pins), cache.pool.num_pinned, cache.pool.num_available) == ([], 0, 8)
    assert len(cache.match(make_request(8, range(9)))) == 2
    fill(cache, 2)
    assert cache.match(make_request(9, range(9))) == []
    pins.unpin("nobody")


def test_a_hit_on_pinned_blocks_takes_none_that_could_be_given() -> None:
    cache, pins = make_pins()
    pins.pin("system", range(8))
    let_go(cache, run(cache, 1, range(8)))
    request = make_request(2, range(9))
    hit = cache.match(request)
    assert cache.num_obtainable(hit) == cache.num_obtainable([]) == 6
    cache.adopt(request, hit)
    assert cache.pool.num_used == 2
    let_go(cache, request)
    assert cache.pool.copy().states.count("p") == 2


def test_two_pins_may_share_a_prefix() -> None:
    cache, pins = make_pins()
    pins.pin("one", range(8))
    pins.pin("two", [*range(4), 50, 51, 52, 53])
    for ordinal, tokens in enumerate(([*range(8)], [*range(4), 50, 51, 52, 53]), 1):
        let_go(cache, run(cache, ordinal, tokens))
    assert cache.pool.num_pinned == 3
    pins.unpin("one")
    assert cache.pool.num_pinned == 2
    fill(cache, 3)
    assert len(cache.match(make_request(8, [*range(4), 50, 51, 52, 53, 1]))) == 2
    assert len(cache.match(make_request(9, range(9)))) == 1


def test_a_name_pins_one_prefix() -> None:
    cache, pins = make_pins()
    pins.pin("system", range(8))
    let_go(cache, run(cache, 1, range(8)))
    pins.pin("system", range(100, 108))
    assert blocks(pins) == [("system", 2, 0)]
    assert cache.pool.num_pinned == 0


@pytest.mark.parametrize(("tokens", "fits"), [(16, True), (19, True), (20, False)])
def test_room_for_a_sequence_of_the_model_s_length_must_be_left(tokens: int, fits: bool) -> None:
    """8 blocks, 4 for 16 tokens: 4 may be pinned, together."""
    _cache, pins = make_pins()
    pins.pin("one", range(4))
    pins.pin("two", range(100, 100 + tokens - 4))
    if fits:
        assert blocks(pins) == [("one", 1, 0), ("two", 3, 0)]
        return
    assert error(pins, "two") == (
        "pinned prefixes would take 5 blocks; the pool has 4 beyond one sequence of the "
        "model's length"
    )
    assert blocks(pins) == [("one", 1, 0), ("two", 0, 0)]


def test_what_two_pins_share_counts_once() -> None:
    _cache, pins = make_pins()
    pins.pin("one", range(12))
    pins.pin("two", [*range(12), 1, 2, 3, 4])
    pins.pin("three", range(100, 104))
    assert error(pins, "three").startswith("pinned prefixes would take 5 blocks")
    pins.pin("two", range(4))
    pins.pin("three", range(100, 104))
    assert blocks(pins) == [("one", 3, 0), ("two", 1, 0), ("three", 1, 0)]


def test_a_pool_that_one_sequence_fills_pins_nothing() -> None:
    _cache, pins = make_pins(num_blocks=3)
    pins.pin("system", range(4))
    assert "would take 1 block; the pool has 0 beyond" in error(pins, "system")


def test_an_unpinned_prefix_goes_tail_first() -> None:
    cache, pins = make_pins(num_blocks=32)
    pins.pin("system", range(12))
    request = make_request(1, range(12))
    compute(cache, request, 12)
    table = list(request.block_table)
    let_go(cache, request)
    pins.unpin("system")
    cache.pool.drain_events()
    cache.extend(make_request(2, range(500, 628)), 128)
    assert cache.pool.drain_events().blocks(BlockChange.EVICTED) == tuple(table[::-1])
