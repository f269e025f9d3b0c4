"""`tui simulate`: the scheduler on a box that is not there, at rising rates of requests."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from app.bench.lengths import LengthError, parse_lengths
from app.bench.plots import Chart, Line, check_charts, show_charts, write_charts
from app.bench.results import plain
from app.bench.scripts import Synthetic
from app.bench.setting import parse_settings
from app.bench.testbed import Testbed, in_virtual_time
from app.console import check_folder, progress_bar, write_json
from app.exits import ExitCode
from app.process import complain, show
from app.serving import ModelLoadError
from app.settings import SettingsError
from app.sweep import ATTAINMENT, KEPT_UP, Curve, Point, Sweep
from engine.config import EngineConfig
from engine.drive import StalledError
from engine.errors import InvalidConfigError, ModelError
from engine.simulation.cost import CostModel, Roofline
from engine.simulation.devices import named_device
from engine.simulation.fitted import Fitted
from engine.simulation.records import Recording
from engine.simulation.shapes import named_shape
from engine.simulation.simulation import envelope

DEVICE, MODEL = "h100", "llama-8b"
# Simulated buffers cost nothing; where the knobs start is what serving engines start with.
_ENVELOPE: Mapping[str, Any] = {"max_num_seqs": 8192, "max_num_batched_tokens": 1 << 17}
_START: Mapping[str, Any] = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
LEAST_REQUESTS = 20
MOST_RATES = 100
_HEADS = ("policy", "rate", "req/s", "tok/s", "TTFT p50", "p99", "TPOT p50", "p99")
_MORE_HEADS = ("E2E p50", "p99", "goodput", "met")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line, as typed; None is not stated. Targets are milliseconds."""

    device_name: str | None = None
    model_name: str | None = None
    policy: str = "stall_free"
    rate: str = "1:64:x2"
    requests: int = 1000
    input_len: str = "128"
    output_len: str = "exponential:128:512"
    burstiness: float = 1.0
    ttft_target: float = 1000.0
    tpot_target: float = 100.0
    kv_slots: int | None = None
    knob: Sequence[str] = ()
    fit: Path | None = None
    charge_padding: bool = False
    load_seed: int = 0
    json_file: Path | None = None
    svg: Path | None = None

    @staticmethod
    def of(params: Mapping[str, Any]) -> Options:
        """From the parameters of the command, which may be more; None is not stated."""
        known = {field.name for field in fields(Options)}
        return Options(
            **{name: value for name, value in params.items() if name in known and value is not None}
        )


def run(options: Options) -> int:
    """Simulate and report; returns the exit code.

    Raises:
        SettingsError: an option is wrong.
        ModelLoadError: the model does not fit on the device.
        StreamError: a result cannot be written.
    """
    try:
        load = _load(options)
        testbed = _testbed(options, load)
        sweep = _sweep(options, load, testbed)
    except LengthError as error:
        raise SettingsError(f"--input-len, --output-len: {error}") from None
    except InvalidConfigError as error:
        raise SettingsError(error.message) from None
    except ModelError as error:
        raise ModelLoadError(error.message) from None
    with progress_bar() as progress:
        bar = progress.add_task("", total=sweep.num_requests)
        curves: list[Curve] = []
        stalled = ""
        try:
            for curve in sweep.run(
                testbed,
                begins=lambda what: progress.update(bar, description=what),
                ended=lambda: progress.advance(bar),
            ):
                curves.append(curve)
        except StalledError as error:
            stalled = str(error)
    show(_about(testbed, sweep))
    show(_table(curves))
    for line in _remarks(curves, sweep):
        show(line)
    drawn = _charts(curves)
    if any(len(curve.points) > 1 for curve in curves):
        show_charts(drawn.values())
    if options.svg is not None:
        write_charts(drawn, options.svg)
    if options.json_file is not None:
        write_json(_to_json(options, testbed, sweep, curves), options.json_file)
    if stalled:
        complain(stalled)
        return ExitCode.FAILED
    points = sum(len(curve.points) for curve in curves)
    whole = points == len(sweep.rates) * len(sweep.knobs)
    return ExitCode.OK if whole else ExitCode.INTERRUPTED


def parse_rates(text: str) -> list[float]:
    """Rates of requests a second, rising: `LOW:HIGH:xK` multiplies by K, `LOW:HIGH:+K` adds K,
    commas separate single ones.

    Raises:
        SettingsError: another form, or a rate that is not above 0.
    """
    allowed = "it must be LOW:HIGH:xK, LOW:HIGH:+K or rates separated by commas, above 0 and rising"
    wrong = SettingsError(f"--rate: it is {text!r}; {allowed}, at most {MOST_RATES} of them")
    parts = text.split(":")
    try:
        if len(parts) == 1:
            rates = [float(part) for part in text.split(",")]
        else:
            low, high, how = float(parts[0]), float(parts[1]), parts[2]
            by = float(how[1:])
            grows = (how[0] == "x" and by > 1) or (how[0] == "+" and by > 0)
            if len(parts) != 3 or not grows or not low > 0:
                raise wrong
            rates = []
            # A sum of small steps may miss the last rate by a rounding.
            while (rate := low * by ** len(rates) if how[0] == "x" else low + by * len(rates)) <= (
                high * (1 + 1e-9)
            ) and len(rates) <= MOST_RATES:
                rates.append(rate)
    except (ValueError, IndexError, OverflowError):
        raise wrong from None
    rising = all(low < high for low, high in pairwise(rates))
    if not 1 <= len(rates) <= MOST_RATES or not rising or not 0 < rates[0] <= rates[-1] < math.inf:
        raise wrong
    return rates


def _load(options: Options) -> Synthetic:
    """The load, but for its rate."""
    if options.requests < LEAST_REQUESTS:
        raise SettingsError(
            f"--requests: it is {options.requests}; it must be at least {LEAST_REQUESTS}"
        )
    if not options.burstiness > 0:
        raise SettingsError(f"--burstiness: it is {options.burstiness}; it must be above 0")
    if options.load_seed < 0:
        raise SettingsError(f"--seed: it is {options.load_seed}; it must be at least 0")
    if options.json_file is not None:
        check_folder("--json", options.json_file)
    if options.svg is not None:
        check_charts("--svg", options.svg)
    return Synthetic(
        num_prompts=options.requests,
        input_len=parse_lengths(options.input_len),
        output_len=parse_lengths(options.output_len),
        burstiness=options.burstiness,
    )


def _testbed(options: Options, load: Synthetic) -> Testbed:
    """A named model on a named device, or what a recording was taken from."""
    most = load.most_tokens
    cost: CostModel
    about: dict[str, object]
    if options.fit is None:
        device = named_device(options.device_name or DEVICE)
        name = options.model_name or MODEL
        shape = named_shape(name)
        config = envelope(device, shape, max_model_len=most, kv_slots=options.kv_slots, **_ENVELOPE)
        cost = Roofline(device, shape, charge_padding=options.charge_padding)
        about = {"model": name, "device": asdict(device)}
    else:
        for flag, value in (("--device", options.device_name), ("--model", options.model_name)):
            if value is not None:
                raise SettingsError(
                    f"{flag}: with --fit, model and device are those of the recording"
                )
        recording = Recording.load(options.fit)
        shape = recording.shape
        cost = Fitted.to(recording, charge_padding=options.charge_padding)
        last = recording.records[-1]
        blocks = last.free_blocks + last.cached_blocks + last.used_blocks
        if options.kv_slots is not None:
            blocks = options.kv_slots // 16
        config = EngineConfig(num_blocks=blocks, max_model_len=most, **_ENVELOPE)
        about = {"fit": str(options.fit), "error": asdict(cost.error)}
        if config.num_slots < most:
            raise SettingsError(
                f"--input-len, --output-len: a request may have {most} tokens; it must be at most "
                f"{config.num_slots}, the token slots of the pool"
            )
    about["padding"] = "costed" if options.charge_padding else "counted, not costed"
    testbed = in_virtual_time(config, shape, cost, about)
    return replace(testbed, knobs=replace(testbed.knobs, **_START))


def _sweep(options: Options, load: Synthetic, testbed: Testbed) -> Sweep:
    """The policies, each with the knobs that hold for all."""
    targets = {"ttft": options.ttft_target, "tpot": options.tpot_target}
    aims = [f"{name}_target_ms={limit}" for name, limit in targets.items()]
    settings = [f"policy={name.strip()}" for name in options.policy.split(",")]
    return Sweep(
        load=load,
        rates=parse_rates(options.rate),
        knobs={
            setting.label.removeprefix("policy="): testbed.with_knobs(setting.changes)
            for setting in parse_settings(settings, [*aims, *options.knob])
        },
        targets=targets,
        seed=options.load_seed,
    )


def _about(testbed: Testbed, sweep: Sweep) -> str:
    """What was simulated, in two lines."""
    about, load, config = testbed.about, sweep.load, testbed.config
    if "fit" in about:
        error = about["error"]
        assert isinstance(error, dict)
        what = (
            f"cost fitted to {about['fit']}, off by {error['median']:.1%} (median) and "
            f"{error['p90']:.1%} (p90) on {error['steps']} steps held out"
        )
    else:
        what = f"{about['model']} on {config.device}, by the roofline"
    return (
        f"Simulated: {what}; {config.num_slots:,} token slots\n"
        f"{load.num_prompts} requests at each rate, {load.input_len} tokens in, "
        f"{load.output_len} out, burstiness {load.burstiness:g}, seed {sweep.seed}\n"
    )


def _table(curves: Sequence[Curve]) -> str:
    rows = [
        [*_HEADS, *_MORE_HEADS],
        ["", "req/s", "", "", *("ms",) * 6, "req/s", ""],
    ]
    rows += [_row(curve.policy, point) for curve in curves for point in curve.points]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0])]
            + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        ).rstrip()
        for row in rows
    )


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
    """The rate asked for, and in brackets the one that the random arrivals came at, if it is off by
    more than 2 %."""
    off = abs(point.arrived / point.rate - 1) > 0.02
    return f"{point.rate:g}" + (f" ({point.arrived:.3g})" if off else "")


def _number(value: float | None) -> str:
    """Three digits; one token has no TPOT."""
    return "-" if value is None else f"{value:.{max(0, 2 - int(math.log10(max(value, 1))))}f}"


def _remarks(curves: Sequence[Curve], sweep: Sweep) -> Iterator[str]:
    """The knee and the goodput of each policy, in words."""
    limits = " and ".join(f"{name.upper()} {ms:g} ms" for name, ms in sweep.targets.items())
    yield ""
    for curve in filter(lambda curve: curve.points, curves):
        knee, capacity = curve.knee, curve.capacity
        if knee is None:
            keeps = "keeps up with none"
        elif knee is curve.points[-1]:
            keeps = f"keeps up with every rate given; its knee lies above {knee.rate:g}/s"
        else:
            keeps = f"keeps up to {knee.rate:g}/s (the knee)"
        if curve.unsure is not None:
            keeps = f"keeps up to {knee.rate:g}/s at least; " if knee else ""
            keeps += f"the run at {curve.unsure.rate:g}/s is too short to tell"
        meets = f"up to {capacity.rate:g}/s" if capacity else "at no rate"
        if capacity is not None and capacity is curve.points[-1]:
            meets = "at every rate given"
        if capacity is not None and capacity.needs:
            meets += ", as far as a run so short can tell"
        yield f"{curve.policy}: {keeps}; {ATTAINMENT:.0%} of requests meet {limits} {meets}"
    needs = {
        point.rate: max(
            other.needs for c in curves for other in c.points if other.rate == point.rate
        )
        for curve in curves
        for point in curve.points
        if point.needs
    }
    if needs:
        told = ", ".join(f"{rate:g}/s {_round_up(needs[rate]):,}" for rate in sorted(needs))
        yield (
            "? the run is too short for its requests: throughputs are of all of it, filling and "
            f"draining included. Needed are about so many --requests: {told}."
        )
    yield (
        "req/s, tok/s and goodput are those from when the batch has filled until the last request "
        f"begins to come out; a rate is kept up with if {KEPT_UP:.0%} as many requests end as "
        "arrive."
    )


def _round_up(count: int) -> int:
    """To two digits."""
    unit = int("1".ljust(len(str(count)) - 1, "0"))
    return -(-count // unit) * unit


def _charts(curves: Sequence[Curve]) -> dict[str, Chart]:
    """Throughput and latencies against rate, with the knee and the goodput marked."""
    return {
        "throughput": _chart("Output throughput", "tok/s", curves, None),
        "ttft": _chart("Time to first token, p99", "ms", curves, "p99_ttft_ms"),
        "tpot": _chart("Time per output token, p99", "ms", curves, "p99_tpot_ms"),
    }


def _chart(title: str, unit: str, curves: Sequence[Curve], key: str | None) -> Chart:
    """Args: key: of the figure; None is the throughput."""

    def height(point: Point) -> float:
        return point.output if key is None else point.figures.get(key, math.nan)

    def marks(curve: Curve) -> tuple[tuple[float, float, str], ...]:
        if not curve.points:
            return ()
        # At the last rate it is but the end of the range, and before a run too short unknown.
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


def _to_json(
    options: Options, testbed: Testbed, sweep: Sweep, curves: Sequence[Curve]
) -> dict[str, object]:
    """Everything, figures as `tui bench` names them; the same for the same options."""
    stated = {field.name: getattr(options, field.name) for field in fields(options)}
    hidden = ("json_file", "svg")
    return {
        "options": {
            name: str(value) if isinstance(value, Path) else plain(value)
            for name, value in stated.items()
            if name not in hidden
        },
        "about": dict(testbed.about),
        "envelope": asdict(testbed.config),
        "goodput_targets_ms": dict(sweep.targets),
        "policies": [
            {
                "policy": curve.policy,
                "knobs": asdict(sweep.knobs[curve.policy]),
                "knee": curve.knee.rate if curve.knee else None,
                "capacity": curve.capacity.rate if curve.capacity else None,
                "points": [asdict(point) for point in curve.points],
            }
            for curve in curves
        ],
    }
