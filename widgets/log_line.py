"""LogLine: one line of the event log, and what of a step or a knob change is worth one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from engine.api.knobs import KnobChange
from engine.api.telemetry import BlockChange, StepRecord
from widgets.figures import change_text, count


class Level(IntEnum):
    """How much a line matters, in the order of a filter."""

    DEBUG = 0
    INFO = 1
    WARNING = 2
    ERROR = 3


@dataclass(frozen=True, slots=True)
class LogLine:
    """One event.

    Attributes:
        time: seconds since the epoch.
        source: the part of the program that speaks: sched, cache, knob, mqtt, ...
    """

    time: float
    level: Level
    source: str
    text: str


def engine_events(record: StepRecord, epoch: float = 0.0) -> list[LogLine]:
    """The events of one step.

    Evictions are for debugging only: a pool under pressure has some in every step, and 50 lines a
    second would push out everything else.

    Args:
        epoch: the time of day at which the engine's clock stood at 0, as seconds since the epoch.
    """
    lines = []

    def say(level: Level, source: str, text: str, at: float) -> None:
        lines.append(LogLine(epoch + at, level, source, text))

    blocks = f"{count(record.free_blocks)} free, {count(record.cached_blocks)} cached blk"
    for request_id in record.preempted:
        text = f"preempt {request_id}: its blocks go, it is recomputed ({blocks})"
        say(Level.WARNING, "sched", text, record.start)
    evicted = len(record.blocks.blocks(BlockChange.EVICTED))
    if evicted:
        say(Level.DEBUG, "cache", f"evict {count(evicted)} cached blk", record.start)
    if record.admitted:
        hit, queried = record.prefix_hit_tokens, record.prefix_queried_tokens
        # Those that come back after a preemption are not asked for again in the prefix cache.
        tokens = f"{count(queried)} tok, {count(hit)} cached" if queried else "recompute"
        if record.padding_tokens:
            tokens += f", {count(record.padding_tokens)} of padding"
        text = f"admit {', '.join(record.admitted)}: {tokens}"
        say(Level.INFO, "sched", text, record.start)
    if record.error:
        say(Level.ERROR, "engine", f"step {count(record.step)} failed: {record.error}", record.end)
    if record.finished:
        say(Level.INFO, "sched", f"finish {', '.join(record.finished)}", record.end)
    return lines


def knob_event(change: KnobChange, epoch: float = 0.0) -> LogLine:
    """A knob change; `epoch` as for `engine_events`."""
    undo = "undo: " if change.undoes else ""
    text = f"{undo}{change_text(change)} by {change.who}"
    level = Level.ERROR if is_fallback(change) else Level.INFO
    return LogLine(epoch + change.time, level, "knob", text)


def is_fallback(change: KnobChange) -> bool:
    """Whether the engine made it because a policy raised: then `who` is that policy and why."""
    policy = change.before.policy
    return policy != change.after.policy and change.who.startswith(f"{policy}: ")
