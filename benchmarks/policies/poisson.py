"""Part B: Poisson arrivals: latencies under each policy, and the gap to static by rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.bench.lengths import Exponential, Uniform
from app.bench.plots import Chart, Line, cumulative
from app.bench.scripts import Synthetic
from app.bench.sweep import Point
from benchmarks.policies.burst import MEAN, SLOTS, original_box
from benchmarks.policies.contenders import POLICIES, Result, measure
from benchmarks.policies.tables import percent, ratio, say, table, title
from engine.api.telemetry import percentile

CAP = 1536
RATES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
SHOWN = (1.0, 4.0)
CONTINUOUS = ("orca", "prefill_first", "stall_free")
REQUESTS = 400

Results = Mapping[float, Mapping[str, Result]]


def workload(rate: float) -> Synthetic:
    """Prompts as the latency runs of Anyscale 2023 have them (`random_prompt_lens_mean` and
    `random_prompt_lens_range` of 256 in `benchmark_configs/*_latency`)."""
    return Synthetic(
        num_prompts=REQUESTS,
        input_len=Uniform(128, 384),
        output_len=Exponential(MEAN, CAP),
        request_rate=rate,
    )


def run(seed: int) -> dict[str, Chart]:
    box, example = original_box(), workload(1.0)
    title(f"B. Poisson arrivals, simulated: {box.name}, {SLOTS:,} token slots")
    say(
        f"{REQUESTS} requests at each rate, {example.input_len} tokens in, {example.output_len} "
        "out. static starts with the requests that wait when idle (static_fill is idle); dynamic "
        "waits up to 100 ms for company."
    )
    results = {
        rate: {
            p: measure(p, box.testbed(p), workload(rate), seed=seed)
            for p in (POLICIES if rate in SHOWN else ("static", *CONTINUOUS))
        }
        for rate in RATES
    }
    table(
        "End-to-end latency in seconds; kept up: requests a second that ended over those that "
        "arrived, once the batch has filled and until the last one begins to come out",
        ["rate", "policy", "p50", "p90", "p99", "TTFT p50", "output tok/s", "kept up"],
        [_latencies(rate, result) for rate in SHOWN for result in results[rate].values()],
        texts=2,
    )
    for rate in SHOWN:
        below = ", ".join(f"{p} {percent(_below(results[rate], p))}" for p in CONTINUOUS)
        say(
            f"At {rate:g}/s latency is below static's at so many of the percentiles: {below} "
            "(published: at every one)."
        )
    say("Where a policy does not keep up, latency is that of a queue, and grows with the run.")
    charts = {
        f"latency-{rate:g}": Chart(
            f"End-to-end latency at {rate:g} requests/s, OPT-13B on A100-40GB (simulated)",
            "seconds",
            "share of requests",
            tuple(Line(p, *cumulative(r.measured.e2el)) for p, r in results[rate].items()),
            log_x=True,
        )
        for rate in SHOWN
    }
    return charts | {"gap": _gap(results)}


def latency(result: Result, q: float) -> float:
    """The q-quantile of end-to-end latency, seconds."""
    return percentile(sorted(result.measured.e2el), q)


def _kept_up(rate: float, result: Result) -> float:
    return Point.of(rate, result.measured, result.figures).kept_up


def _latencies(rate: float, result: Result) -> list[str]:
    return [
        f"{rate:g}/s",
        result.policy,
        *(f"{latency(result, q):.1f}" for q in (0.5, 0.9, 0.99)),
        f"{result.figures['median_ttft_ms'] / 1e3:.2f}",
        f"{result.output_throughput:.0f}",
        f"{_kept_up(rate, result):.0%}",
    ]


def _below(its: Mapping[str, Result], policy: str) -> float:
    """Share of the percentiles at which a policy is faster than static."""
    pairs = zip(sorted(its[policy].measured.e2el), sorted(its["static"].measured.e2el), strict=True)
    return sum(ours < static for ours, static in pairs) / REQUESTS


def _gap(results: Results) -> Chart:
    """Static against each continuous policy, in throughput and in median latency."""
    throughputs: dict[str, list[float]] = {policy: [] for policy in CONTINUOUS}
    latencies: dict[str, list[float]] = {policy: [] for policy in CONTINUOUS}
    rows = []
    for rate, its in results.items():
        static = its["static"]
        cells = [f"{rate:g}/s", f"{static.output_throughput:.0f}", f"{_kept_up(rate, static):.0%}"]
        for policy in CONTINUOUS:
            throughputs[policy].append(its[policy].output_throughput / static.output_throughput)
            latencies[policy].append(latency(static, 0.5) / latency(its[policy], 0.5))
            cells += [ratio(throughputs[policy][-1]), f"{latencies[policy][-1]:.1f}x"]
        rows.append(cells)
    table(
        "The gap by rate: output tok/s of the whole run over static's, and static's median latency "
        "over the policy's",
        [
            "rate",
            "static tok/s",
            "kept up",
            *(head for policy in CONTINUOUS for head in (policy, "p50")),
        ],
        rows,
    )
    for policy in CONTINUOUS:
        say(
            f"{policy}: the gap in throughput {_course(throughputs[policy])}; in median latency it "
            f"{_course(latencies[policy])}."
        )
    say(
        "The texts let the gap narrow as the rate grows and free room shrinks. Here it narrows, "
        f"past its widest, in median latency for {_narrowing(latencies)}, and in throughput for "
        f"{_narrowing(throughputs)}."
    )
    return Chart(
        "Over static, by rate: OPT-13B on A100-40GB (simulated)",
        "requests/s",
        "times static",
        tuple(
            Line(f"{policy}: {what}", RATES, ratios[policy])
            for policy in ("orca", "stall_free")
            for what, ratios in (("throughput", throughputs), ("median latency", latencies))
        ),
        log_x=True,
        log_y=True,
        points=True,
    )


def _narrowing(ratios: Mapping[str, Sequence[float]]) -> str:
    """The policies whose gap at the highest rate is less than 95 % of their widest."""
    found = [policy for policy, its in ratios.items() if its[-1] < 0.95 * max(its)]
    return ", ".join(found) or "none"


def _course(ratios: Sequence[float]) -> str:
    """How a ratio goes with the rate, in words."""
    widest = max(range(len(ratios)), key=ratios.__getitem__)
    course = (
        f"is {ratios[0]:.1f}x at {RATES[0]:g}/s and widest, {ratios[widest]:.1f}x, at "
        f"{RATES[widest]:g}/s"
    )
    if widest < len(ratios) - 1:
        course += f", then {ratios[-1]:.1f}x at {RATES[-1]:g}/s"
    return course
