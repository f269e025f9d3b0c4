"""Roofline: seconds of a step against sums done by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.batch.plan import Row, StepPlan
from engine.batch.shape import ModelShape
from engine.simulation.cost import Roofline
from engine.simulation.devices import Device

# One operation and one byte a second, so that seconds are counts.
UNIT = Device(
    name="unit",
    peak_flops=1.0,
    peak_bandwidth=1.0,
    memory=1.0,
    matmul_efficiency=1.0,
    bandwidth_efficiency=1.0,
    layer_overhead=0.0,
    step_overhead=0.0,
)
SHAPE = ModelShape(
    num_params=150,
    num_active_params=100,
    hidden_size=5,
    vocab_size=10,
    num_heads=4,
    num_kv_heads=2,
    head_dim=3,
    value_dim=2,
    windows=(None, None),
    dtype_bytes=2,
)


def decode(start: int) -> Row:
    return Row(1, start, 1, (), samples=True, prefill=False)


def prefill(start: int, count: int, samples: bool = True) -> Row:
    return Row(2, start, count, (), samples=samples, prefill=True)


def test_swapped_blocks_take_the_link() -> None:
    """A block is 16 tokens of 40 bytes; the link gives half of its 64 bytes a second."""
    device = replace(UNIT, peak_link=64.0, link_efficiency=0.5)
    step = plan(decode(9))
    swapping = replace(step, swaps_out=((0, 0), (1, 1)), swaps_in=((2, 3),))
    cost = Roofline(device, SHAPE)
    assert cost.seconds(swapping) - cost.seconds(step) == pytest.approx(3 * 16 * 40 / 32)


def plan(*rows: Row, padding: tuple[Row, ...] = ()) -> StepPlan:
    return StepPlan(step=1, rows=rows, padding=padding)


def test_a_step_by_hand() -> None:
    cost = Roofline(UNIT, SHAPE)
    # Two layers; an entry of one is 2 heads * (3 + 2) * 2 = 20 bytes, a pair 4 * 5 * 2 operations.
    matrices = max(2 * 100 * (1 + 3), 100 * 2)
    head = max(2 * 50 * 2, 50 * 2)
    decoding = max(2 * 10 * 40, 2 * (10 + 1) * 20)
    prefilling = max(2 * (1 + 2 + 3) * 40, 2 * (3 + 3) * 20)
    assert cost.seconds(plan(decode(9), prefill(0, 3))) == pytest.approx(
        matrices + head + decoding + prefilling
    )


def test_memory_decides_where_it_is_slower() -> None:
    """On a device with fast arithmetic only bytes count, and a head without samples is not read."""
    cost = Roofline(replace(UNIT, peak_flops=1e9), SHAPE)
    assert cost.seconds(plan(prefill(0, 3, samples=False))) == pytest.approx(
        200 + 2 * (3 + 3) * 20, rel=1e-4
    )
    assert cost.seconds(plan(decode(9))) == pytest.approx(200 + 100 + 2 * 11 * 20, rel=1e-4)


def test_phases_do_not_hide_behind_one_another() -> None:
    """A prompt's arithmetic and the reading of decodes' caches add up; one maximum would not."""
    slow = replace(UNIT, peak_flops=10.0, peak_bandwidth=1.0)
    cost = Roofline(slow, SHAPE)
    both = cost.seconds(plan(decode(500), prefill(0, 50)))
    work = SHAPE.cost([decode(500), prefill(0, 50)])
    assert both > max(work.flops / 10, work.bytes / 1) + 1000


def test_overheads_come_on_top_of_every_step() -> None:
    device = replace(UNIT, layer_overhead=7.0, step_overhead=11.0)
    step = plan(decode(9))
    extra = Roofline(device, SHAPE).seconds(step) - Roofline(UNIT, SHAPE).seconds(step)
    assert extra == pytest.approx(2 * 7 + 11)


def test_efficiencies_lengthen_a_step() -> None:
    device = replace(UNIT, matmul_efficiency=0.5, bandwidth_efficiency=0.25)
    step = plan(decode(9))
    same = Roofline(replace(UNIT, peak_flops=0.5, peak_bandwidth=0.25), SHAPE)
    assert Roofline(device, SHAPE).seconds(step) == pytest.approx(same.seconds(step))


def test_padding_costs_only_where_it_is_charged() -> None:
    padding = (prefill(3, 2, samples=False), decode(12))
    padded = plan(decode(9), prefill(0, 3), padding=padding)
    executed = plan(decode(9), decode(12), prefill(0, 3), prefill(3, 2, samples=False))
    free = Roofline(UNIT, SHAPE)
    charged = Roofline(UNIT, SHAPE, charge_padding=True)
    assert free.seconds(padded) == free.seconds(plan(*padded.rows))
    assert charged.seconds(padded) == pytest.approx(free.seconds(executed))


@given(st.integers(0, 5000), st.integers(1, 500), st.integers(0, 5000))
def test_more_work_never_takes_less(start: int, count: int, other: int) -> None:
    cost = Roofline(UNIT, SHAPE)
    step = plan(decode(other), prefill(start, count))
    assert cost.seconds(step) <= cost.seconds(plan(decode(other), prefill(start, count + 1)))
    assert cost.seconds(step) <= cost.seconds(plan(decode(other + 1), prefill(start, count)))
    assert cost.seconds(step) > cost.seconds(plan(decode(other)))
