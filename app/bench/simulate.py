"""`tui simulate`: the scheduler on a simulated machine, at rising request rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from app.bench import sweep_report
from app.bench.options import SimulateOptions
from app.bench.plots import check_charts, print_charts, write_charts
from app.bench.results import plain
from app.bench.scripts import Synthetic
from app.bench.setting import of_policies
from app.bench.sweep import Curve, Sweep
from app.bench.testbed import Testbed, in_virtual_time
from app.bench.workloads import stated_lengths
from app.process.console import check_folder, progress_bar, write_json
from app.process.exits import ExitCode
from app.process.process import complain, print_text
from app.process.serving import ModelLoadError
from app.settings.knobs import parse_knob
from app.settings.settings import SettingsError, parse_size
from engine.api.config import BLOCK_SIZE, EngineConfig
from engine.api.errors import InvalidConfigError, ModelError
from engine.driving.drive import StalledError
from engine.simulation.cost import Roofline
from engine.simulation.devices import named_device
from engine.simulation.fitted import Fitted
from engine.simulation.records import Recording
from engine.simulation.shapes import named_shape
from engine.simulation.simulation import envelope, least_slots

DEVICE, MODEL = "h100", "llama-8b"
# The envelope is wide, because simulated buffers cost nothing. The knobs start at the usual
# defaults of serving engines.
_ENVELOPE: Mapping[str, Any] = {"max_num_seqs": 8192, "max_num_batched_tokens": 1 << 17}
_START: Mapping[str, Any] = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
# The option for each parameter that an error may name. Other knobs are set by --knob.
_KNOB_OPTIONS = {
    "policy": "--policy",
    "ttft_target_ms": "--ttft-target",
    "tpot_target_ms": "--tpot-target",
}
_OPTIONS = {"device": "--device", "model": "--model", "fit": "--fit"} | _KNOB_OPTIONS
LEAST_REQUESTS = 20
MOST_RATES = 100


def parse_rates(text: str) -> list[float]:
    """Parse rising rates, in requests a second. `LOW:HIGH:xK` multiplies by K, `LOW:HIGH:+K` adds
    K, and commas separate single rates.

    Raises:
        SettingsError: the text has another form, a rate is not above 0 or not finite, the rates do
            not rise, or there are more than `MOST_RATES`.
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
            # A sum of small steps may miss the last rate by a rounding error.
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


def run(options: SimulateOptions) -> int:
    """Simulate and report; returns the exit code.

    Raises:
        SettingsError: an option is wrong.
        ModelLoadError: the model does not fit on the device.
        StreamError: a result cannot be written.
    """
    try:
        workload = _workload(options)
        testbed = _testbed(options, workload)
        sweep = _sweep(options, workload, testbed)
    except InvalidConfigError as error:
        option = _OPTIONS.get(error.param or "", "--knob")
        raise SettingsError(f"{option}: {error.message}") from None
    except ModelError as error:
        raise ModelLoadError(error.message) from None
    curves, stalled = _curves(sweep, testbed)
    _report(options, testbed, sweep, curves)
    if stalled:
        complain(stalled)
        return ExitCode.FAILED
    points = sum(len(curve.points) for curve in curves)
    whole = points == len(sweep.rates) * len(sweep.knobs)
    return ExitCode.OK if whole else ExitCode.INTERRUPTED


def _curves(sweep: Sweep, testbed: Testbed) -> tuple[list[Curve], str]:
    """The curves, and a sentence that says why they ended early, empty if they did not. They end
    early if requests would wait forever."""
    curves: list[Curve] = []
    with progress_bar() as progress:
        bar = progress.add_task("", total=sweep.num_requests)
        try:
            for curve in sweep.run(
                testbed,
                begins=lambda what: progress.update(bar, description=what),
                ended=lambda: progress.advance(bar),
            ):
                curves.append(curve)
        except StalledError as error:
            return curves, str(error)
    return curves, ""


def _report(
    options: SimulateOptions, testbed: Testbed, sweep: Sweep, curves: Sequence[Curve]
) -> None:
    """Write table and charts to standard output, and the requested files."""
    print_text(sweep_report.about(testbed, sweep))
    print_text(sweep_report.table(curves))
    for line in sweep_report.remarks(curves, sweep):
        print_text(line)
    drawn = sweep_report.charts(curves)
    if any(len(curve.points) > 1 for curve in curves):
        print_charts(drawn.values())
    if options.svg is not None:
        write_charts(drawn, options.svg)
    if options.json_file is not None:
        write_json(_to_json(options, testbed, sweep, curves), options.json_file)


def _workload(options: SimulateOptions) -> Synthetic:
    """The workload without its rate, which the sweep sets."""
    if options.requests < LEAST_REQUESTS:
        raise SettingsError(
            f"--requests: it is {options.requests}; it must be at least {LEAST_REQUESTS}"
        )
    if not options.burstiness > 0:
        raise SettingsError(f"--burstiness: it is {options.burstiness}; it must be above 0")
    if options.seed < 0:
        raise SettingsError(f"--seed: it is {options.seed}; it must be at least 0")
    if options.json_file is not None:
        check_folder("--json", options.json_file)
    if options.svg is not None:
        check_charts("--svg", options.svg)
    return Synthetic(
        num_prompts=options.requests,
        input_len=stated_lengths("--input-len", options.input_len),
        output_len=stated_lengths("--output-len", options.output_len),
        burstiness=options.burstiness,
    )


def _testbed(options: SimulateOptions, workload: Synthetic) -> Testbed:
    """The testbed: a named model on a named device, or the model and device of a recording."""
    most, least = workload.most_tokens, least_slots(workload.most_tokens)
    if options.kv_slots is not None and options.kv_slots < least:
        raise SettingsError(
            f"--kv-slots: it is {options.kv_slots}; it must be at least {least}, in blocks of "
            f"{BLOCK_SIZE} the {most} tokens that a request may have by --input-len and "
            "--output-len"
        )
    testbed = (
        _named(options, most) if options.fit is None else _recorded(options.fit, options, most)
    )
    padding = "costed" if options.charge_padding else "counted, not costed"
    return replace(
        testbed,
        knobs=replace(testbed.knobs, **_START),
        about=dict(testbed.about) | {"padding": padding},
    )


def _named(options: SimulateOptions, most: int) -> Testbed:
    """The testbed of a named model on a named device, for requests of at most `most` tokens."""
    device, name = named_device(options.device or DEVICE), options.model or MODEL
    shape = named_shape(name)
    config = envelope(
        device,
        shape,
        max_model_len=most,
        kv_slots=options.kv_slots,
        swap_memory=_swap_memory(options),
        **_ENVELOPE,
    )
    cost = Roofline(device, shape, charge_padding=options.charge_padding)
    return in_virtual_time(config, shape, cost, {"model": name, "device": asdict(device)})


def _swap_memory(options: SimulateOptions) -> int:
    try:
        return parse_size(options.swap_memory or 0)
    except ValueError as error:
        raise SettingsError(f"--swap-memory: it is {options.swap_memory!r}; {error}") from None


def _recorded(file: Path, options: SimulateOptions, most: int) -> Testbed:
    """The testbed that a recording was made on, for requests of at most `most` tokens."""
    for option, value in (("--device", options.device), ("--model", options.model)):
        if value is not None:
            raise SettingsError(
                f"{option}: with --fit, model and device are those of the recording"
            )
    if options.swap_memory is not None:
        raise SettingsError("--swap-memory: a recording does not say how fast blocks are swapped")
    recording = Recording.load(file)
    cost = Fitted.to(recording, charge_padding=options.charge_padding)
    last = recording.records[-1]
    blocks = last.free_blocks + last.cached_blocks + last.used_blocks
    if options.kv_slots is not None:
        blocks = options.kv_slots // BLOCK_SIZE
    config = EngineConfig(num_blocks=blocks, max_model_len=most, **_ENVELOPE)
    if config.num_slots < most:
        raise SettingsError(
            f"--input-len, --output-len: a request may have {most} tokens; it must be at most "
            f"{config.num_slots}, the token slots of the pool"
        )
    about = {"fit": str(file), "error": asdict(cost.error)}
    return in_virtual_time(config, recording.shape, cost, about)


def _sweep(options: SimulateOptions, workload: Synthetic, testbed: Testbed) -> Sweep:
    """The sweep: every policy gets the common knobs."""
    targets = {"ttft": options.ttft_target, "tpot": options.tpot_target}
    aims = [f"{name}_target_ms={limit}" for name, limit in targets.items()]
    for name, _ in map(parse_knob, options.knob):
        if name in _KNOB_OPTIONS:
            raise SettingsError(f"--knob: set {name} with {_KNOB_OPTIONS[name]}")
    return Sweep(
        workload=workload,
        rates=parse_rates(options.rate),
        knobs={
            setting.label: testbed.with_knobs(setting.changes)
            for setting in of_policies(options.policy, [*aims, *options.knob])
        },
        targets=targets,
        seed=options.seed,
    )


def _to_json(
    options: SimulateOptions, testbed: Testbed, sweep: Sweep, curves: Sequence[Curve]
) -> dict[str, object]:
    """Everything about the sweep, with figures named as in `tui bench`. The same options give the
    same data."""
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
