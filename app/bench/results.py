"""Results: measurements and their conditions, as JSON and as charts."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime

from app.bench.plots import Chart, Line, cumulative
from app.bench.runs import Plan, Run, medians
from app.bench.scripts import Synthetic
from app.bench.testbed import Testbed
from app.system import machine
from app.system.versions import PACKAGES, version


def by_setting(plan: Plan, runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """The label and the runs of each setting, in the stated order. Settings without runs are left
    out."""
    # Settings are compared by identity: a setting may run against itself, to show the noise.
    found = [
        (setting.label, [run for run in runs if run.setting is setting])
        for setting, _ in plan.settings
    ]
    return [(label, its) for label, its in found if its]


def to_json(plan: Plan, testbed: Testbed, runs: Sequence[Run]) -> dict[str, object]:
    """Everything about the runs: figures, settings, versions and the machine. The figures have the
    keys of `app.bench.report`."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "partial": any(run.partial for run in runs),
        "model": plain(testbed.about),
        "envelope": asdict(testbed.config),
        "workload": plain(_workload(plan)),
        "max_concurrency": plan.concurrency,
        "goodput_targets_ms": dict(plan.targets),
        "warmups": 0 if testbed.virtual else plan.warmups,
        "settings": [
            {
                "label": label,
                "knobs": asdict(its[0].knobs),
                "figures": medians(its),
                "runs": [
                    {
                        "seed": run.seed,
                        "partial": run.partial,
                        "figures": dict(run.figures),
                        "errors": dict(run.measured.errors),
                    }
                    for run in its
                ],
            }
            for label, its in by_setting(plan, runs)
        ],
        "versions": {package: version(package) for package in PACKAGES}
        | {"python": platform.python_version()},
        "machine": {
            "system": platform.platform(),
            "cores": machine.num_cores(),
            "processor_features": machine.cpu_features(),
            "memory": machine.host_memory().total,
            "gpus": [gpu.name for gpu in machine.gpu_memory()],
        },
    }


def charts(plan: Plan, runs: Sequence[Run]) -> dict[str, Chart]:
    """Charts by name: throughput and batch over time, and the distributions of TTFT and end-to-end
    latency. Each has a line for the first run of each setting."""
    first = [(label, its[0].measured) for label, its in by_setting(plan, runs)]
    return {
        "throughput": Chart(
            "Output token throughput",
            "seconds",
            "tok/s",
            tuple(
                Line(label, run.output.middles, [n / run.output.width for n in run.output.sums])
                for label, run in first
            ),
        ),
        "batch": Chart(
            "Batch",
            "seconds",
            "sequences in a step",
            tuple(Line(label, *run.steps.batch_over_time()) for label, run in first),
        ),
        "ttft": Chart(
            "Time to first token",
            "seconds",
            "share of requests",
            tuple(Line(label, *cumulative(run.ttft)) for label, run in first),
            steps=True,
        ),
        "e2el": Chart(
            "End-to-end latency",
            "seconds",
            "share of requests",
            tuple(Line(label, *cumulative(run.e2el)) for label, run in first),
            steps=True,
        ),
    }


def _workload(plan: Plan) -> dict[str, object]:
    workload = plan.workload
    common = {"seed": plan.seed, "requests": workload.num_requests}
    if isinstance(workload, Synthetic):
        names = workload.__slots__
        return common | {name: plain(getattr(workload, name)) for name in names}
    return common | {"request_rate": workload.request_rate, "burstiness": workload.burstiness}


def plain(value: object) -> object:
    """A value as JSON can hold it. Infinity becomes "inf", because JSON has none, and lengths
    become the text that states them."""
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, float) and value == float("inf"):
        return "inf"
    return str(value) if is_dataclass(value) else value
