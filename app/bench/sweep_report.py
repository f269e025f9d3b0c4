"""Report of a sweep: a table, sentences that sum it up, and charts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from app.bench.plots import Chart, Line
from app.bench.sweep import ATTAINMENT, KEPT_UP, Curve, Point, Sweep
from app.bench.testbed import Testbed
from app.process.columns import align

_HEADS = ("policy", "rate", "req/s", "tok/s", "TTFT p50", "p99", "TPOT p50", "p99")
_MORE_HEADS = ("E2E p50", "p99", "goodput", "met")


def about(testbed: Testbed, sweep: Sweep) -> str:
    """The header of the report, in two lines."""
    described, workload, config = testbed.about, sweep.workload, testbed.config
    if "fit" in described:
        error = described["error"]
        assert isinstance(error, dict)
        what = (
            f"cost fitted to {described['fit']}, off by {error['median']:.1%} (median) and "
            f"{error['p90']:.1%} (p90) on {error['steps']} steps held out"
        )
    else:
        what = f"{described['model']} on {config.device}, by the roofline"
    host = config.num_host_blocks * config.block_size
    swapped = f", {host:,} in host memory" if host else ""
    return (
        f"Simulated: {what}; {config.num_slots:,} token slots{swapped}\n"
        f"{workload.num_prompts} requests at each rate, {workload.input_len} tokens in, "
        f"{workload.output_len} out, burstiness {workload.burstiness:g}, seed {sweep.seed}\n"
    )


def table(curves: Sequence[Curve]) -> str:
    rows = [
        [*_HEADS, *_MORE_HEADS],
        ["", "req/s", "", "", *("ms",) * 6, "req/s", ""],
    ]
    rows += [_row(curve.policy, point) for curve in curves for point in curve.points]
    return "\n".join(align(rows, numbers=range(1, len(rows[0]))))


def _row(policy: str, point: Point) -> list[str]:
    unsure = "?" if point.needs else ""
    latencies = [
        _number(point.figures.get(f"{key}_{name}_ms"))
        for name in ("ttft", "tpot", "e2el")
        for key in ("median", "p99")
    ]
    return [
        policy,
        _rate(point),
        f"{point.served:.2f}" + unsure,
        f"{point.output:.0f}",
        *latencies,
        f"{point.goodput:.2f}",
        f"{point.attained:.0%}" + unsure,
    ]


def _rate(point: Point) -> str:
    """The configured rate. The actual rate of the random arrivals follows in brackets if it is off
    by more than 2 %."""
    off = abs(point.arrived / point.rate - 1) > 0.02
    return f"{point.rate:g}" + (f" ({point.arrived:.3g})" if off else "")


def _number(value: float | None) -> str:
    """A number with three digits, or "-" for none: a request of one token has no TPOT."""
    return "-" if value is None else f"{value:.{max(0, 2 - int(math.log10(max(value, 1))))}f}"


def remarks(curves: Sequence[Curve], sweep: Sweep) -> Iterator[str]:
    """The knee and the goodput of each policy in words, and how to read the table."""
    limits = " and ".join(f"{name.upper()} {ms:g} ms" for name, ms in sweep.targets.items())
    yield ""
    for curve in filter(lambda curve: curve.points, curves):
        meets = f"{ATTAINMENT:.0%} of requests meet {limits} {_meets(curve)}"
        yield f"{curve.policy}: {_describe_knee(curve)}; {meets}"
    needs: dict[float, int] = {}
    for point in (point for curve in curves for point in curve.points if point.needs):
        needs[point.rate] = max(point.needs, needs.get(point.rate, 0))
    if needs:
        listed = ", ".join(f"{rate:g}/s {_round_up(needs[rate]):,}" for rate in sorted(needs))
        yield (
            "? the run is too short: throughputs include the filling and draining of the batch. "
            f"About this many --requests are needed: {listed}."
        )
    yield (
        "req/s, tok/s and goodput are measured from when the batch is full until the last request "
        f"gets its first token; a policy keeps up with a rate if {KEPT_UP:.0%} as many requests "
        "end as arrive."
    )


def _describe_knee(curve: Curve) -> str:
    knee = curve.knee
    if curve.unsure is not None:
        least = f"keeps up to {knee.rate:g}/s at least; " if knee else ""
        return f"{least}the run at {curve.unsure.rate:g}/s is too short to tell"
    if knee is None:
        return "keeps up with no rate"
    if knee is curve.points[-1]:
        return f"keeps up with every rate given; its knee is above {knee.rate:g}/s"
    return f"keeps up to {knee.rate:g}/s (the knee)"


def _meets(curve: Curve) -> str:
    capacity = curve.capacity
    if capacity is None:
        return "at no rate"
    is_last = capacity is curve.points[-1]
    rates = "at every rate given" if is_last else f"up to {capacity.rate:g}/s"
    return f"{rates}, as far as so short a run can show" if capacity.needs else rates


def _round_up(count: int) -> int:
    """The count, rounded up to two digits."""
    unit = int("1".ljust(len(str(count)) - 1, "0"))
    return -(-count // unit) * unit


def charts(curves: Sequence[Curve]) -> dict[str, Chart]:
    """Throughput and latencies against rate, with the knee and the goodput marked."""
    return {
        "throughput": _chart("Output throughput", "tok/s", curves, None),
        "ttft": _chart("Time to first token, p99", "ms", curves, "p99_ttft_ms"),
        "tpot": _chart("Time per output token, p99", "ms", curves, "p99_tpot_ms"),
    }


def _chart(title: str, unit: str, curves: Sequence[Curve], key: str | None) -> Chart:
    """A chart of one figure against rate.

    Args:
        key: the figure's name in `Figures`; None draws the throughput.
    """

    def height(point: Point) -> float:
        return point.output if key is None else point.figures.get(key, math.nan)

    def marks(curve: Curve) -> tuple[tuple[float, float, str], ...]:
        if not curve.points:
            return ()
        # A knee at the last rate is only the end of the range, and the knee is not known if the run
        # after it is too short.
        at_end = curve.unsure is not None or curve.knee is curve.points[-1]
        knee = None if at_end else curve.knee
        named = {"knee": knee, "goodput": curve.capacity}
        found = {name: point for name, point in named.items() if point is not None}
        if len({id(point) for point in found.values()}) < len(found):
            found = {"knee, goodput": found["knee"]}
        return tuple((point.rate, height(point), name) for name, point in found.items())

    lines = tuple(
        Line(
            curve.policy, [p.rate for p in curve.points], [*map(height, curve.points)], marks(curve)
        )
        for curve in curves
    )
    return Chart(title, "requests/s", unit, lines, log_x=True, log_y=key is not None, points=True)
