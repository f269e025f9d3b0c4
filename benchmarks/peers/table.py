"""Table: the peers' figures of one workload, beside each other."""

from __future__ import annotations

import math
from collections.abc import Mapping

from app.process.columns import row
from benchmarks.peers.floor import Machine, decode_cost, prefill_cost
from benchmarks.peers.peers import OUR_PLAIN, OURS
from benchmarks.peers.run import Measures
from benchmarks.peers.width import Weights
from benchmarks.peers.workload import Workload
from engine.batch.shape import ModelShape

_COLUMNS = (-24, 9, 9, 9, 9, 9, 9, 9, 9, 9, 10)
_HEAD = (
    (
        "peer",
        "out",
        "decode",
        "TTFT p50",
        "p99",
        "TPOT p50",
        "p99",
        "peak",
        "memory",
        "of floor",
        "batchdeck",
    ),
    ("", "tok/s", "tok/s", "ms", "ms", "ms", "ms", "MB", "GB/s", "", "/peer"),
)


def table(
    workload: Workload,
    measures: Mapping[str, Measures | None],
    weights: Mapping[str, Weights],
    shape: ModelShape,
    machine: Machine,
) -> str:
    """A line for each contender. The ratio is batchdeck's output tokens a second over the
    contender's: of batchdeck in the same width, or in bf16 where it does not serve that.

    `of floor` is the time of a decode step over the least that this machine allows, whose memory
    read at `memory` just before and after the contender ran. For a workload with one output token,
    it is the prefill's FLOPs over the machine's rate of products.

    Args:
        measures: the measures of each contender; None if it cannot take the workload.
        weights: the weights of each contender at least, for the floor.
    """
    plain = measures.get(OUR_PLAIN)
    lines = [row(cells, _COLUMNS) for cells in _HEAD]
    for contender, measured in measures.items():
        if measured is None:
            lines.append(row((contender, "n/a"), _COLUMNS))
            continue
        ours = measures.get(f"{OURS} {weights[contender].width.name}") or plain
        ratio = math.nan if ours is None else ours.rate / measured.rate
        cells = (
            contender,
            _number(measured.rate),
            _number(measured.decode_rate),
            _number(1e3 * measured.ttft_p50),
            _number(1e3 * measured.ttft_p99),
            _number(1e3 * measured.tpot_p50),
            _number(1e3 * measured.tpot_p99),
            _number(measured.peak_bytes / 1e6, 0),
            _number(measured.bandwidth / 1e9),
            _of_floor(workload, measured, weights[contender], shape, machine),
            _number(ratio, 2),
        )
        lines.append(row(cells, _COLUMNS))
    return "\n".join(lines)


def _of_floor(
    workload: Workload, measured: Measures, weights: Weights, shape: ModelShape, machine: Machine
) -> str:
    if workload.output_tokens == 1:
        rate = prefill_cost(shape, workload).flops / measured.ttft_p50
        return f"{rate / machine.rate(weights.width):.0%} rate"
    cost = decode_cost(shape, workload, weights)
    floor = machine.seconds(cost, weights.width, measured.bandwidth)
    return "-" if math.isnan(measured.decode_step) else f"{measured.decode_step / floor:.2f}x"


def _number(value: float, digits: int = 1) -> str:
    return "-" if math.isnan(value) else f"{value:,.{digits}f}"
