"""Table: the peers' figures of one load, beside each other."""

from __future__ import annotations

import math
from collections.abc import Mapping

from benchmarks.peers.floor import Machine, decode_cost, prefill_cost
from benchmarks.peers.load import Load
from benchmarks.peers.peers import OURS
from benchmarks.peers.run import Measures
from engine.shape import ModelShape

_WIDTHS = (14, 9, 9, 9, 9, 9, 9, 9, 9, 10)
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
        "of floor",
        "batchdeck",
    ),
    ("", "tok/s", "tok/s", "ms", "ms", "ms", "ms", "MB", "", "/peer"),
)


def table(
    load: Load, measures: Mapping[str, Measures | None], shape: ModelShape, machine: Machine
) -> str:
    """One line a peer; batchdeck's ratio to it is of output tokens a second.

    `of floor`: a decode step over the least time that this machine allows it; where a load has one
    token out, the prefill's FLOPs over the machine's matrix rate.

    Args:
        measures: None is a peer that cannot take the load.
    """
    ours = measures.get(OURS)
    lines = [_row(cells) for cells in _HEAD]
    for name, measured in measures.items():
        if measured is None:
            lines.append(_row((name, "n/a")))
            continue
        ratio = math.nan if ours is None else ours.rate / measured.rate
        cells = (
            name,
            _number(measured.rate),
            _number(measured.decode_rate),
            _number(1e3 * measured.ttft_p50),
            _number(1e3 * measured.ttft_p99),
            _number(1e3 * measured.tpot_p50),
            _number(1e3 * measured.tpot_p99),
            _number(measured.peak_bytes / 1e6, 0),
            _of_floor(load, measured, shape, machine),
            _number(ratio, 2),
        )
        lines.append(_row(cells))
    return "\n".join(lines)


def _of_floor(load: Load, measured: Measures, shape: ModelShape, machine: Machine) -> str:
    if load.output_tokens == 1:
        rate = prefill_cost(shape, load).flops / measured.ttft_p50
        return f"{rate / machine.matrix_rate:.0%} rate"
    floor = machine.seconds(decode_cost(shape, load))
    return "-" if math.isnan(measured.decode_step) else f"{measured.decode_step / floor:.2f}x"


def _number(value: float, digits: int = 1) -> str:
    return "-" if math.isnan(value) else f"{value:,.{digits}f}"


def _row(cells: tuple[str, ...]) -> str:
    name, *rest = cells
    padded = [f"{cell:>{width}}" for cell, width in zip(rest, _WIDTHS[1:], strict=False)]
    return " ".join([f"{name:{_WIDTHS[0]}}", *padded]).rstrip()
