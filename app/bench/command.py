"""`tui bench`: run a workload on an engine of this process and report on it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.progress import Progress

from app.bench import results
from app.bench.options import BenchOptions
from app.bench.plots import print_charts, write_charts
from app.bench.report import to_text
from app.bench.runs import Plan, Run, medians, run_all
from app.bench.scripts import Synthetic
from app.bench.setting import Setting, of_policies, parse_settings
from app.bench.testbed import Testbed, of_model, simulated
from app.bench.workloads import parse_targets, recorded, synthetic
from app.process.console import loading_bar, progress_bar, write_json, writing
from app.process.exits import ExitCode
from app.process.process import complain, print_text
from app.process.serving import ModelLoadError, load_model
from app.settings.settings import Settings, SettingsError
from engine.api.errors import InvalidConfigError, ModelError
from engine.api.knobs import Knobs
from engine.api.telemetry import StepRecord
from engine.driving.drive import StalledError
from engine.simulation.records import Recording


def run(settings: Settings, options: BenchOptions) -> int:
    """Measure and report; returns the exit code.

    Raises:
        SettingsError: an option is wrong.
        ModelLoadError: the model could not be loaded.
        StreamError: a result cannot be written.
    """
    records: list[StepRecord] = []
    with progress_bar() as progress:
        # Errors that show without a model are raised before one is loaded.
        compared = _compared(options)
        workload = synthetic(options) if options.dataset_path is None else None
        targets = parse_targets(options)
        with _testbed(settings, options, progress) as testbed:
            plan = Plan(
                workload=workload or recorded(options, testbed.encode),
                settings=_with_knobs(compared, testbed, options),
                concurrency=options.max_concurrency,
                targets=targets,
                seed=options.seed,
                rounds=options.rounds,
                warmups=options.num_warmups,
            )
            _check_lengths(plan, testbed)
            on_record = records.append if options.save_steps else None
            runs, stalled = _measure(plan, testbed, progress, on_record)
    if runs:
        _report(plan, testbed, runs, options)
    if options.save_steps is not None:
        with writing(options.save_steps):
            Recording(testbed.shape, records).save(options.save_steps)
    if stalled:
        complain(stalled)
        return ExitCode.FAILED
    if any(run.partial for run in runs):
        return ExitCode.INTERRUPTED
    return ExitCode.FAILED if any(run.measured.failed for run in runs) else ExitCode.OK


@contextmanager
def _testbed(settings: Settings, options: BenchOptions, progress: Progress) -> Iterator[Testbed]:
    """The testbed that `--simulate` names, or one on the model of the settings, which stays loaded
    until the context ends."""
    if options.simulate is not None:
        try:
            testbed = simulated(options.simulate, settings, charge_padding=options.charge_padding)
        except InvalidConfigError as error:
            named = error.param in ("simulate", "device", "model")
            raise SettingsError(
                f"--simulate: {error.message}" if named else error.message
            ) from None
        except ModelError as error:
            raise ModelLoadError(error.message) from None
        yield testbed
        return
    if options.charge_padding:
        raise SettingsError(
            "--charge-padding: it works only with --simulate; a model computes no padding"
        )
    try:
        with loading_bar(progress, settings.model) as tell:
            loaded = load_model(settings.load_request(), tell)
    except (InvalidConfigError, ModelError) as error:
        raise ModelLoadError(error.message) from None
    try:
        yield of_model(loaded)
    finally:
        loaded.close()


def _compared(options: BenchOptions) -> list[Setting]:
    if options.policy is not None:
        if options.compare:
            raise SettingsError(
                "--policy: each setting of --compare states its own, as policy=NAME"
            )
        if "policy" in _stated(options.knob):
            raise SettingsError("--knob: set the policy with --policy")
    try:
        if options.policy is not None:
            return of_policies(options.policy, options.knob)
        return parse_settings(options.compare, options.knob)
    except InvalidConfigError as error:
        raise _wrong_knob(error, options) from None


def _with_knobs(
    compared: list[Setting], testbed: Testbed, options: BenchOptions
) -> list[tuple[Setting, Knobs]]:
    try:
        return [(setting, testbed.with_knobs(setting.changes)) for setting in compared]
    except InvalidConfigError as error:
        raise _wrong_knob(error, options) from None


def _wrong_knob(error: InvalidConfigError, options: BenchOptions) -> SettingsError:
    """The error as a sentence that begins with the flag that set the knob."""
    if error.param == "policy" and options.policy is not None:
        return SettingsError(f"--policy: {error.message}")
    stated = _stated(part for text in options.compare for part in text.split(","))
    common = _stated(options.knob)
    both = error.param in stated and error.param in common
    flag = "--compare, --knob" if both else "--compare" if error.param in stated else "--knob"
    return SettingsError(f"{flag}: {error.message}")


def _stated(texts: Iterable[str]) -> list[str]:
    """The knob names in texts of the form `name=value`."""
    return [text.partition("=")[0].strip() for text in texts]


def _check_lengths(plan: Plan, testbed: Testbed) -> None:
    """Refuse a synthetic workload that does not fit. Requests of a dataset that do not fit still
    run, and count as failed."""
    limit = min(testbed.config.max_model_len, testbed.config.num_slots)
    if isinstance(plan.workload, Synthetic) and plan.workload.most_tokens > limit:
        raise SettingsError(
            f"--random-input-len, --random-output-len: with prefix and turns a request may have "
            f"{plan.workload.most_tokens} tokens; it must be at most {limit}, for which model "
            "length and KV pool have room"
        )


def _measure(
    plan: Plan,
    testbed: Testbed,
    progress: Progress,
    on_record: Callable[[StepRecord], None] | None,
) -> tuple[list[Run], str]:
    """The runs, and a sentence that says why they ended early, empty if they did not. They end
    early if requests would wait forever."""
    bar = progress.add_task("", total=plan.num_requests)
    runs: list[Run] = []
    try:
        for run in run_all(
            plan,
            testbed,
            begins=lambda what: progress.update(bar, description=what),
            ended=lambda: progress.advance(bar),
            on_record=on_record,
        ):
            runs.append(run)
    except StalledError as error:
        return runs, str(error)
    finally:
        progress.remove_task(bar)
    return runs, ""


def _report(plan: Plan, testbed: Testbed, runs: list[Run], options: BenchOptions) -> None:
    """Write tables and charts to standard output, and the requested files."""
    grouped = results.by_setting(plan, runs)
    print_text(
        to_text(
            [(label, medians(its)) for label, its in grouped],
            _about(plan, testbed, options),
            named=bool(options.compare or options.policy),
        )
    )
    for line in _remarks(plan, testbed, runs):
        print_text(line)
    drawn = results.charts(plan, runs)
    if options.plot:
        print_charts(drawn.values())
    if options.svg is not None:
        write_charts(drawn, options.svg)
    if options.json_file is not None:
        write_json(results.to_json(plan, testbed, runs), options.json_file)


def _about(plan: Plan, testbed: Testbed, options: BenchOptions) -> str:
    """The header of the report in two lines: the model and its device, and the workload."""
    workload = plan.workload
    if isinstance(workload, Synthetic):
        what = f"{workload.input_len} tokens in, {workload.output_len} out"
        what += f", {workload.turns} turns" if workload.turns > 1 else ""
    else:
        what = f"of {options.dataset_path}"
    if workload.request_rate is not None:
        together = workload.request_rate == math.inf
        what += ", all at once" if together else f", {workload.request_rate:g} requests/s"
    what += f", at most {plan.concurrency} at once" if plan.concurrency else ""
    width = testbed.config.quantize
    quantized = f", weights quantized to {width}" if width != "none" else ""
    return (
        f"Model:    {testbed.about['name']} on {testbed.config.device}{quantized}\n"
        f"Workload: {workload.num_requests} requests, {what}; seed {plan.seed}"
    )


def _remarks(plan: Plan, testbed: Testbed, runs: list[Run]) -> Iterator[str]:
    """Lines that a reader of the table needs."""
    if plan.rounds > 1:
        yield f"Medians of {plan.rounds} rounds, interleaved."
    if testbed.virtual:
        yield "Simulated: times come from a model of the device, and are not measured."
    if any(run.measured.steps.padding for run in runs):
        yield f"Padding and bubbles are {testbed.about['padding']}."
    if any(run.partial for run in runs):
        yield "PARTIAL: interrupted; the figures cover the requests that had ended."
    errors = Counter[str]()
    for run in runs:
        errors.update(run.measured.errors)
    for message, count in errors.items():
        yield f"failed {count}x: {message}"
