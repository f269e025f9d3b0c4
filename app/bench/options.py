"""Options: what `tui bench` was told, and the load that it means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from app.bench.lengths import LengthError, Lengths, parse_lengths
from app.bench.measurement import TARGETS
from app.bench.plots import check_charts
from app.bench.scripts import Recorded, Synthetic
from app.bench.workload import Encode, WorkloadError, read_workload
from app.console import check_folder
from app.settings import SettingsError

NUM_PROMPTS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line, as typed. `None` and empty are not stated."""

    num_prompts: int | None = None
    request_rate: float | None = None
    burstiness: float = 1.0
    max_concurrency: int | None = None
    random_input_len: str = "128"
    random_output_len: str = "128"
    random_prefix_len: int = 0
    num_prefixes: int = 1
    turns: int = 1
    think_time: float = 0.0
    dataset_path: Path | None = None
    goodput: Sequence[str] = ()
    more_targets: Sequence[str] = ()
    compare: Sequence[str] = ()
    knob: Sequence[str] = ()
    rounds: int = 1
    num_warmups: int = 1
    load_seed: int = 0
    simulate: str | None = None
    charge_padding: bool = False
    json_file: Path | None = None
    svg: Path | None = None
    plot: bool = False
    save_steps: Path | None = None

    @staticmethod
    def of(params: Mapping[str, Any]) -> Options:
        """From the parameters of the command, which may be more; None is not stated."""
        known = {f.name for f in fields(Options)}
        return Options(
            **{name: value for name, value in params.items() if name in known and value is not None}
        )

    def synthetic(self) -> Synthetic:
        """The load, where no file has it.

        Raises:
            SettingsError: an option outside its range.
        """
        self._check()
        return Synthetic(
            num_prompts=self.num_prompts or NUM_PROMPTS,
            input_len=_lengths("--random-input-len", self.random_input_len),
            output_len=_lengths("--random-output-len", self.random_output_len),
            request_rate=math.inf if self.request_rate is None else self.request_rate,
            burstiness=self.burstiness,
            prefix_len=self.random_prefix_len,
            num_prefixes=self.num_prefixes,
            turns=self.turns,
            think=self.think_time,
        )

    def recorded(self, encode: Encode | None) -> Recorded:
        """The load of the file `dataset_path`.

        Raises:
            SettingsError: it cannot be read, or an option is outside its range.
        """
        assert self.dataset_path is not None
        self._check()
        try:
            asks = read_workload(self.dataset_path, encode)
        except WorkloadError as error:
            raise SettingsError(f"--dataset-path: {error}") from None
        return Recorded(
            asks=asks[: self.num_prompts],
            request_rate=self.request_rate,
            burstiness=self.burstiness,
        )

    def targets(self) -> dict[str, float]:
        """Milliseconds by name.

        Raises:
            SettingsError: a target that is none.
        """
        if self.more_targets and not self.goodput:
            raise SettingsError(f"{self.more_targets[0]}: it stands behind no option")
        targets = {}
        for text in " ".join((*self.goodput, *self.more_targets)).split():
            name, _, limit = text.partition(":")
            try:
                targets[name] = float(limit)
            except ValueError:
                targets[name] = math.nan
            if name not in TARGETS or not targets[name] > 0:
                raise SettingsError(
                    f"--goodput: {text!r} is no target; it must be NAME:MS with a name of "
                    f"{', '.join(TARGETS)} and milliseconds above 0"
                )
        return targets

    def _check(self) -> None:
        least = {
            "num_prompts": 1,
            "max_concurrency": 1,
            "random_prefix_len": 0,
            "num_prefixes": 1,
            "turns": 1,
            "think_time": 0,
            "rounds": 1,
            "num_warmups": 0,
            "load_seed": 0,
        }
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and not low <= value < math.inf:
                raise SettingsError(f"{_flag(name)}: it is {value}; it must be at least {low}")
        for name in ("json_file", "save_steps"):
            path = getattr(self, name)
            if path is not None:
                check_folder(_flag(name), path)
        if self.svg is not None:
            check_charts("--svg", self.svg)
        for name in ("request_rate", "burstiness"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise SettingsError(
                    f"{_flag(name)}: it is {value}; it must be above 0, inf is allowed"
                )


def _flag(name: str) -> str:
    return "--" + name.removeprefix("load_").removesuffix("_file").replace("_", "-")


def _lengths(flag: str, text: str) -> Lengths:
    try:
        return parse_lengths(text)
    except LengthError as error:
        raise SettingsError(f"{flag}: {error}") from None
