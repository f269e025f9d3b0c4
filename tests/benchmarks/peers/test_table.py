"""The floor's arithmetic and the table's lines."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from benchmarks.peers.floor import Machine, decode_cost, prefill_cost
from benchmarks.peers.peers import OUR_PLAIN
from benchmarks.peers.reference import agreement
from benchmarks.peers.run import Measures
from benchmarks.peers.table import table
from benchmarks.peers.width import BF16, WIDTHS, Weights
from benchmarks.peers.workload import Workload
from engine.simulation.shapes import SHAPES

SHAPE = SHAPES["387m"]
MACHINE = Machine(matrix_rate=2.5e12, integer_rate=4e12)
PLAIN, HALF = Weights(BF16, SHAPE.weight_bytes), Weights(WIDTHS["int8"], SHAPE.weight_bytes // 2)
EIGHT = Workload(((1,) * 128,) * 8, 64, (0.0,) * 8)
MEASURES = Measures(100.0, 160.0, 0.050, 0.2, 0.3, 0.05, 0.06, 1.5e9, 25e9)


def test_a_decode_step_reads_weights_and_live_context_once() -> None:
    cost = decode_cost(SHAPE, EIGHT, PLAIN)
    # Half-way a token attends to 128 + 32 before it and to itself, and its own are written.
    context = 8 * (128 + 32 + 1) + 8
    assert cost.bytes == SHAPE.weight_bytes + context * SHAPE.kv_bytes_per_token
    assert MACHINE.seconds(cost, BF16, 25e9) == pytest.approx(cost.bytes / 25e9)
    assert decode_cost(SHAPE, EIGHT, HALF).bytes == cost.bytes - SHAPE.weight_bytes // 2


def test_a_prefill_is_bound_by_its_products() -> None:
    workload = Workload(((1,) * 2048,), 1, (0.0,))
    cost = prefill_cost(SHAPE, workload)
    assert cost.flops > 2 * SHAPE.num_active_params * 2048
    assert MACHINE.seconds(cost, BF16, 25e9) == pytest.approx(cost.flops / 2.5e12)
    assert MACHINE.seconds(cost, WIDTHS["int4"], 25e9) == pytest.approx(cost.flops / 4e12)


def test_one_line_a_peer() -> None:
    slower = replace(MEASURES, rate=40.0, decode_step=math.nan, peak_bytes=math.nan)
    measures = {"batchdeck bf16": MEASURES, "slower": slower, "static": None}
    weights = dict.fromkeys(measures, PLAIN)
    lines = table(EIGHT, measures, weights, SHAPE, MACHINE).splitlines()[2:]
    floor = MACHINE.seconds(decode_cost(SHAPE, EIGHT, PLAIN), BF16, 25e9)
    assert lines[0].split() == [
        *("batchdeck", "bf16", "100.0", "160.0", "200.0", "300.0", "50.0", "60.0", "1,500"),
        *("25.0", f"{0.050 / floor:.2f}x", "1.00"),
    ]
    assert lines[1].split()[-4:] == ["-", "25.0", "-", "2.50"]
    assert lines[2].split() == ["static", "n/a"]


def test_a_ratio_is_to_batchdeck_in_the_same_width_if_it_serves_that() -> None:
    faster = replace(MEASURES, rate=300.0)
    weights = {OUR_PLAIN: PLAIN, "other Q8_0": HALF, "batchdeck int8": HALF}
    for ours, ratios in ((None, ["1.00", "1.00"]), (faster, ["1.00", "3.00", "1.00"])):
        measures = {OUR_PLAIN: MEASURES, "other Q8_0": MEASURES}
        if ours is not None:
            measures["batchdeck int8"] = ours
        lines = table(EIGHT, measures, weights, SHAPE, MACHINE).splitlines()[2:]
        assert [line.split()[-1] for line in lines] == ratios


LOGITS = torch.tensor([1.0, 5.0, 4.95, 2.0])


@pytest.mark.parametrize(
    ("tokens", "first", "is_exact", "equal"),
    [
        ([1, 7, 8], True, True, 3),
        ([1, 7, 9], True, True, 2),
        ([2, 7, 8], True, False, 0),
        ([3, 7, 8], False, False, 0),
    ],
)
def test_a_first_token_agrees_within_what_bfloat16_may_be_off(
    tokens: list[int], first: bool, is_exact: bool, equal: int
) -> None:
    found = agreement([1, 7, 8], tokens, LOGITS, tolerance=0.03)
    assert (found.first, found.is_exact, found.equal, found.total) == (first, is_exact, equal, 3)
    assert ("ANOTHER" in str(found)) is not first
