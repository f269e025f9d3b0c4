"""Runs: a workload on a testbed, under each setting in turn."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice

from app.bench.measurement import Measurement
from app.bench.report import Figures, figures
from app.bench.scripts import Recorded, Synthetic
from app.bench.setting import Setting
from app.bench.testbed import Testbed
from app.bench.traffic import Script, ScriptedTraffic
from engine.api.knobs import Knobs
from engine.api.telemetry import StepRecord
from engine.driving.drive import drive


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The runs to do.

    Attributes:
        settings: each setting, with its resulting knobs.
        concurrency: most concurrent scripts; see `ScriptedTraffic`.
        targets: upper limits in milliseconds by name; see `Measurement`.
        seed: the seed of the workload in the first round; each later round adds 1.
        rounds: how often all settings are run, one after the other (A B A B). Each round draws its
            own workload, which is the same for all settings.
        warmups: requests that run under each setting before the first round and are not measured.
    """

    workload: Synthetic | Recorded
    settings: Sequence[tuple[Setting, Knobs]]
    concurrency: int | None = None
    targets: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    rounds: int = 1
    warmups: int = 1

    @property
    def num_requests(self) -> int:
        return self.workload.num_requests * self.rounds * len(self.settings)


@dataclass(frozen=True, slots=True)
class Run:
    """One workload under one setting.

    Attributes:
        seed: the seed of the workload.
        partial: whether the run was interrupted; then the figures are those of the requests that
            had ended.
    """

    setting: Setting
    knobs: Knobs
    seed: int
    measured: Measurement
    figures: Figures
    partial: bool


def run_all(
    plan: Plan,
    testbed: Testbed,
    begins: Callable[[str], None] | None = None,
    ended: Callable[[], None] | None = None,
    on_record: Callable[[StepRecord], None] | None = None,
) -> Iterator[Run]:
    """Run the plan. A run that is interrupted (SIGINT) is the last one.

    Args:
        begins: called with a description of each run when it begins.
        ended: called after every request.
        on_record: called with the record of each measured step.

    Raises:
        StalledError: some setting would make requests wait forever.
    """
    if plan.warmups and not testbed.virtual:
        _warm_up(plan, testbed)
    for round_ in range(plan.rounds):
        for setting, knobs in plan.settings:
            if begins is not None:
                of = f" {round_ + 1}/{plan.rounds}" if plan.rounds > 1 else ""
                begins(setting.label + of)
            run = _run(plan, testbed, setting, knobs, plan.seed + round_, ended, on_record)
            yield run
            if run.partial:
                return


def medians(runs: Sequence[Run]) -> dict[str, float]:
    """The median of each figure over the runs that have it. Interrupted runs are left out, unless
    all were interrupted."""
    whole = [run for run in runs if not run.partial] or list(runs)
    keys = dict.fromkeys(key for run in whole for key in run.figures)
    return {
        key: statistics.median(run.figures[key] for run in whole if key in run.figures)
        for key in keys
    }


def _run(
    plan: Plan,
    testbed: Testbed,
    setting: Setting,
    knobs: Knobs,
    seed: int,
    ended: Callable[[], None] | None,
    on_record: Callable[[StepRecord], None] | None,
) -> Run:
    core, clock = testbed.make(knobs)
    traffic = ScriptedTraffic(
        plan.workload.scripts(testbed.shape.vocab_size, seed), plan.concurrency
    )
    start = clock()
    measured = Measurement(core, start, plan.targets, on_record, ended)
    partial = False
    try:
        with _uncollected() if testbed.virtual else nullcontext():
            # Steps taken at once leave no records.
            at_once = testbed.virtual and on_record is None
            repeated = measured.repeated if at_once else None
            seconds = drive(core, traffic, clock, measured, repeated)
    except KeyboardInterrupt:
        seconds, partial = clock() - start, True
    measured.close()
    found = figures(
        measured,
        seconds,
        goodput=bool(plan.targets),
        max_concurrency=plan.concurrency,
        request_rate=plan.workload.request_rate,
    )
    return Run(setting, knobs, seed, measured, found, partial)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disable the cyclic garbage collector for a block. A core makes no cycles, and the search for
    them takes 17 % of a simulated run at 256 sequences. Real runs keep the collector, as serving
    does."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _warm_up(plan: Plan, testbed: Testbed) -> None:
    """Run the first requests of a separate draw, all at once, under each setting."""
    scripts = plan.workload.scripts(testbed.shape.vocab_size, plan.seed + plan.rounds)
    burst = [Script(replace(script.first, arrival=0.0)) for script in islice(scripts, plan.warmups)]
    for _, knobs in plan.settings:
        core, clock = testbed.make(knobs)
        drive(core, ScriptedTraffic(burst), clock, Measurement(core, clock(), {}))
