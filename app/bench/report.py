"""Report: the figures of a run, with the names, order and wording of `vllm bench serve`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.bench.measurement import Measurement
from engine.api.telemetry import percentile

_LABEL, _VALUE = 40, 10
_WIDTH = _LABEL + _VALUE


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report.

    Attributes:
        key: the figure's name in `Figures` and in the JSON; vLLM's result files use the same names
            for the figures that they have.
        label: the figure's name in the table, with its unit.
        decimals: how many decimals are shown; 0 for counts.
    """

    key: str
    label: str
    decimals: int = 2


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    rows: tuple[Row, ...]


Figures = Mapping[str, float]


def _latency(title: str, name: str) -> Section:
    return Section(
        title,
        tuple(
            Row(f"{key}_{name.lower()}_ms", f"{label} {name} (ms):")
            for key, label in (("mean", "Mean"), ("median", "Median"), ("p99", "P99"))
        ),
    )


SECTIONS = (
    Section(
        "",
        (
            Row("completed", "Successful requests:", 0),
            Row("failed", "Failed requests:", 0),
            Row("max_concurrency", "Maximum request concurrency:", 0),
            Row("request_rate", "Request rate configured (RPS):"),
            Row("duration", "Benchmark duration (s):"),
            Row("total_input_tokens", "Total input tokens:", 0),
            Row("total_output_tokens", "Total generated tokens:", 0),
            Row("request_throughput", "Request throughput (req/s):"),
            Row("request_goodput", "Request goodput (req/s):"),
            Row("output_throughput", "Output token throughput (tok/s):"),
            Row("max_output_tokens_per_s", "Peak output token throughput (tok/s):"),
            Row("max_concurrent_requests", "Peak concurrent requests:"),
            Row("total_token_throughput", "Total token throughput (tok/s):"),
        ),
    ),
    _latency("Time to First Token", "TTFT"),
    _latency("Time per Output Token (excl. 1st token)", "TPOT"),
    _latency("Inter-token Latency", "ITL"),
    _latency("End-to-end Latency", "E2EL"),
    Section(
        "Engine Steps",
        (
            Row("steps", "Steps:", 0),
            Row("mean_step_ms", "Mean step time (ms):"),
            Row("mean_batch", "Mean batch (sequences):"),
            Row("mean_step_tokens", "Mean step size (tokens):"),
            Row("kv_waste", "KV slots allocated but unused (%):"),
            Row("padding", "Padding and bubbles (% of tokens):"),
            Row("preemptions", "Preemptions:", 0),
            Row("swaps", "Preemptions by swapping:", 0),
            Row("prefix_hit_rate", "Prefix cache hit rate (%):"),
        ),
    ),
)


def figures(
    run: Measurement,
    duration: float,
    *,
    goodput: bool,
    max_concurrency: int | None = None,
    request_rate: float | None = None,
) -> dict[str, float]:
    """All figures by key.

    Figures that were not requested, or that have no samples, are left out. Throughputs count the
    requests that succeeded, as vLLM's do. The peak throughput is that of the best whole second
    after the start, as vLLM's is, but never below the mean. ITL percentiles are within 0.05 %; all
    other figures are exact.

    Args:
        run: the measurements.
        duration: seconds from the start to the end of the last request.
        goodput: whether there were targets, so that goodput is a figure.
        max_concurrency: the limit on concurrent requests; None without one.
        request_rate: requests a second as configured; None if arrivals came from a file.
    """
    steps = run.steps
    mean_output = _over(run.output_tokens, duration)
    of_tokens = steps.tokens + steps.padding
    found: dict[str, float | None] = {
        "completed": run.completed,
        "failed": run.failed,
        "max_concurrency": max_concurrency,
        "request_rate": None if request_rate == math.inf else request_rate,
        "duration": duration,
        "total_input_tokens": run.input_tokens,
        "total_output_tokens": run.output_tokens,
        "request_throughput": _over(run.completed, duration),
        "request_goodput": _over(run.good, duration) if goodput else None,
        "output_throughput": mean_output,
        # The last second is only partly filled: a run of 0.5 s would have a mean of twice its peak.
        "max_output_tokens_per_s": max(run.peak_output, mean_output),
        "max_concurrent_requests": run.peak_concurrency,
        "total_token_throughput": _over(run.input_tokens + run.output_tokens, duration),
        **_distribution("ttft", run.ttft),
        **_distribution("tpot", run.tpot),
        "mean_itl_ms": 1e3 * run.itl.mean,
        "median_itl_ms": 1e3 * run.itl.percentile(0.5),
        "p99_itl_ms": 1e3 * run.itl.percentile(0.99),
        **_distribution("e2el", run.e2el),
        "steps": steps.steps,
        "mean_step_ms": _over(1e3 * steps.seconds, steps.steps),
        "mean_batch": _over(steps.rows, steps.steps),
        "mean_step_tokens": _over(steps.tokens, steps.steps),
        "kv_waste": 100 * steps.kv_waste,
        "padding": _over(100 * steps.padding, of_tokens),
        "preemptions": steps.preemptions,
        "swaps": steps.swaps,
        "prefix_hit_rate": _over(100 * steps.hits, steps.queried),
    }
    return {
        key: value for key, value in found.items() if value is not None and not math.isnan(value)
    }


def to_text(runs: Sequence[tuple[str, Figures]], about: str = "", *, named: bool = False) -> str:
    """The report of one run, or of several side by side, each with its ratio to the first.

    Args:
        runs: the name and the figures of each run; at least one run.
        about: lines that go below the title.
        named: whether the name is shown even if there is only one run.
    """
    several = len(runs) > 1
    columns = [max(_VALUE, len(name)) for name, _ in runs]
    width = _WIDTH if not several else _LABEL + sum(columns) + 10 * len(runs) - 9
    lines = [" Serving Benchmark Result ".center(width, "="), *about.splitlines()]
    if several or named:
        heads = [f"{'':{_LABEL}}{runs[0][0]:>{columns[0]}}"]
        heads += [
            f"{name:>{w}}   ratio" for (name, _), w in zip(runs[1:], columns[1:], strict=True)
        ]
        lines.append("  ".join(heads))
    for section in SECTIONS:
        rows = [row for row in section.rows if any(row.key in its for _, its in runs)]
        if section.title and rows:
            lines.append(section.title.center(width, "-"))
        for row in rows:
            if several:
                lines.append(_compared(row, [its for _, its in runs], columns))
            else:
                lines.append(f"{row.label:<{_LABEL}} {_format_figure(row, runs[0][1])}")
    lines.append("=" * width)
    return "\n".join(lines)


def _compared(row: Row, runs: Sequence[Figures], columns: Sequence[int]) -> str:
    first = runs[0].get(row.key)
    cells = [f"{row.label:<{_LABEL}}{_format_figure(row, runs[0]):>{columns[0]}}"]
    for its, width in zip(runs[1:], columns[1:], strict=True):
        value = its.get(row.key)
        ratio = "" if not first or value is None else f"{value / first:.2f}x"
        cells.append(f"{_format_figure(row, its):>{width}} {ratio:>7}")
    return "  ".join(cells).rstrip()


def _format_figure(row: Row, its: Figures) -> str:
    value = its.get(row.key)
    return "-" if value is None else f"{value:.{row.decimals}f}"


def _distribution(name: str, seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        f"mean_{name}_ms": _over(1e3 * math.fsum(ordered), len(ordered)),
        f"median_{name}_ms": 1e3 * percentile(ordered, 0.5),
        f"p99_{name}_ms": 1e3 * percentile(ordered, 0.99),
    }


def _over(amount: float, by: float) -> float:
    return amount / by if by else math.nan
