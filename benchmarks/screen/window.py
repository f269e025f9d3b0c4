"""Window: what one program did in its turn, by its looks and its engine's step records."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

from benchmarks.screen.look import Look
from engine.api.telemetry import StepRecord

ENGINE_THREADS = ("engine", "engine-text", "answers", "consumer")


@dataclass(frozen=True, slots=True)
class Window:
    """What one program did in its turn.

    Attributes:
        rate: output tokens a second.
        step, beside: milliseconds, medians of the steps.
        interface, engine, text, pools: CPU milliseconds a second.
        painted: bytes a second.
        key: milliseconds from a key to its letter on the screen, the median; None without one.
    """

    rate: float
    step: float
    beside: float
    interface: float
    engine: float
    text: float
    pools: float
    painted: float
    key: float | None


COLUMNS = tuple(column.name for column in fields(Window))


@dataclass(slots=True)
class Turn:
    """From one look to another, to be filled in when the records are there."""

    before: Look
    after: Look
    painted: int
    keys: Sequence[float]


def window_of(turn: Turn, records: Sequence[StepRecord]) -> Window:
    """What the step records say of a turn."""
    before, after = turn.before, turn.after
    steps = [r for r in records if before.time <= r.start and r.end <= after.time]
    cycles = [(late.start - early.start, early) for early, late in pairwise(steps)]
    seconds = after.time - before.time
    used = {
        name: 1000 * (cpu - before.threads.get(name, 0.0)) / seconds
        for name, cpu in after.threads.items()
    }
    process = 1000 * (after.process - before.process) / seconds
    runner = [early.times.prepare + early.times.forward + early.times.sample for _, early in cycles]
    return Window(
        rate=sum(early.output_tokens for _, early in cycles) / sum(cycle for cycle, _ in cycles),
        step=1000 * statistics.median(cycle for cycle, _ in cycles),
        beside=1000 * statistics.mean(c - own for (c, _), own in zip(cycles, runner, strict=True)),
        interface=sum(cpu for name, cpu in used.items() if name not in ENGINE_THREADS),
        engine=used["engine"],
        text=used["engine-text"],
        pools=process - sum(used.values()),
        painted=turn.painted / seconds,
        key=1000 * statistics.median(turn.keys) if turn.keys else None,
    )
