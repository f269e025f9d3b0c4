"""Workloads: the workload that the options of `tui bench` describe, and the checks of these
options."""

from __future__ import annotations

import math

from app.bench.dataset import DatasetError, Encode, read_dataset
from app.bench.lengths import LengthError, Lengths, parse_lengths
from app.bench.measurement import TARGETS
from app.bench.options import BenchOptions
from app.bench.plots import check_charts
from app.bench.scripts import Recorded, Synthetic
from app.process.console import check_folder
from app.settings.settings import SettingsError

NUM_PROMPTS = 100


def synthetic(options: BenchOptions) -> Synthetic:
    """The synthetic workload that the options describe.

    Raises:
        SettingsError: an option is outside its range.
    """
    _check(options)
    return Synthetic(
        num_prompts=options.num_prompts or NUM_PROMPTS,
        input_len=stated_lengths("--random-input-len", options.random_input_len),
        output_len=stated_lengths("--random-output-len", options.random_output_len),
        request_rate=math.inf if options.request_rate is None else options.request_rate,
        burstiness=options.burstiness,
        prefix_len=options.random_prefix_len,
        num_prefixes=options.num_prefixes,
        turns=options.turns,
        think=options.think_time,
    )


def recorded(options: BenchOptions, encode: Encode | None) -> Recorded:
    """The workload in the file `dataset_path`.

    Raises:
        SettingsError: the file cannot be read, or an option is outside its range.
    """
    assert options.dataset_path is not None
    _check(options)
    try:
        asks = read_dataset(options.dataset_path, encode)
    except DatasetError as error:
        raise SettingsError(f"--dataset-path: {error}") from None
    return Recorded(
        asks=asks[: options.num_prompts],
        request_rate=options.request_rate,
        burstiness=options.burstiness,
    )


def parse_targets(options: BenchOptions) -> dict[str, float]:
    """The latency targets by name, in milliseconds.

    Raises:
        SettingsError: a text is not a target.
    """
    if options.more_targets and not options.goodput:
        raise SettingsError(f"{options.more_targets[0]}: it does not follow an option")
    targets = {}
    for text in " ".join((*options.goodput, *options.more_targets)).split():
        name, _, limit = text.partition(":")
        try:
            targets[name] = float(limit)
        except ValueError:
            targets[name] = math.nan
        if name not in TARGETS or not targets[name] > 0:
            raise SettingsError(
                f"--goodput: {text!r} is not a target; it must be NAME:MS with a name of "
                f"{', '.join(TARGETS)} and milliseconds above 0"
            )
    return targets


def _check(options: BenchOptions) -> None:
    least = {
        "num_prompts": 1,
        "max_concurrency": 1,
        "random_prefix_len": 0,
        "num_prefixes": 1,
        "turns": 1,
        "think_time": 0,
        "rounds": 1,
        "num_warmups": 0,
        "seed": 0,
    }
    for name, low in least.items():
        value = getattr(options, name)
        if value is not None and not low <= value < math.inf:
            raise SettingsError(f"{_flag(name)}: it is {value}; it must be at least {low}")
    for name in ("json_file", "save_steps"):
        path = getattr(options, name)
        if path is not None:
            check_folder(_flag(name), path)
    if options.svg is not None:
        check_charts("--svg", options.svg)
    for name in ("request_rate", "burstiness"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            raise SettingsError(f"{_flag(name)}: it is {value}; it must be above 0, inf is allowed")


def _flag(name: str) -> str:
    return "--" + name.removesuffix("_file").replace("_", "-")


def stated_lengths(option: str, text: str) -> Lengths:
    """The lengths in the text of an option.

    Raises:
        SettingsError: the text is not a length; the message begins with the option.
    """
    try:
        return parse_lengths(text)
    except LengthError as error:
        raise SettingsError(f"{option}: {error}") from None
