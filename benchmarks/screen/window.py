"""Window: what one program did in its turn, by its looks and its engine's step records."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

from benchmarks.screen.look import Look
from engine.api.telemetry import StepRecord, percentile

ENGINE_THREADS = ("engine", "engine-text", "answers", "consumer")


@dataclass(frozen=True, slots=True)
class Window:
    """The figures of one program's turn.

    Attributes:
        rate: output tokens a second.
        step, p99: milliseconds from the end of a step to that of the next one, the median and the
            99th percentile.
        beside: milliseconds of them that are not the runner's, the mean.
        late: milliseconds that the engine's thread goes on after the device is done, the 99th
            percentile; None where no device stands in for the model.
        interface, engine, text, pools: CPU milliseconds a second.
        painted: bytes a second.
        key: milliseconds from a key to its letter on the screen, the median; None without one.
    """

    rate: float
    step: float
    p99: float
    beside: float
    late: float | None
    interface: float
    engine: float
    text: float
    pools: float
    painted: float
    key: float | None


COLUMNS = tuple(column.name for column in fields(Window))


@dataclass(slots=True)
class Turn:
    """From one look to another, to be filled in when the records are there.

    Attributes:
        records: those of the steps between the looks, and maybe some more.
    """

    before: Look
    after: Look
    painted: int
    keys: Sequence[float]
    records: Sequence[StepRecord] = ()


def window_of(turn: Turn, *, waits: bool = False) -> Window:
    """The figures of a turn's step records.

    Args:
        waits: whether a device stands in for the model (`benchmarks.screen.stand_in`).
    """
    before, after = turn.before, turn.after
    steps = [r for r in turn.records if before.time <= r.start and r.end <= after.time]
    gaps = [late.end - early.end for early, late in pairwise(steps)]
    seconds = after.time - before.time
    used = {
        name: 1000 * (cpu - before.threads.get(name, 0.0)) / seconds
        for name, cpu in after.threads.items()
    }
    process = 1000 * (after.process - before.process) / seconds
    runner = [step.times.prepare + step.times.forward + step.times.sample for step in steps[1:]]
    late = [1000 * step.times.sample for step in steps]
    return Window(
        rate=sum(step.output_tokens for step in steps[1:]) / sum(gaps),
        step=1000 * statistics.median(gaps),
        p99=1000 * percentile(sorted(gaps), 0.99),
        beside=1000 * statistics.mean(g - own for g, own in zip(gaps, runner, strict=True)),
        late=percentile(sorted(late), 0.99) if waits else None,
        interface=sum(cpu for name, cpu in used.items() if name not in ENGINE_THREADS),
        engine=used["engine"],
        text=used["engine-text"],
        pools=process - sum(used.values()),
        painted=turn.painted / seconds,
        key=1000 * statistics.median(turn.keys) if turn.keys else None,
    )
