"""LogLine: one line of the event log, and the lines for a step or a change of knobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from engine.api.knobs import KnobChange
from engine.api.telemetry import BlockChange, StepRecord
from widgets.figures import change_text, count


class Level(IntEnum):
    """The level of a line, in rising order."""

    DEBUG = 0
    INFO = 1
    WARNING = 2
    ERROR = 3


@dataclass(frozen=True, slots=True)
class LogLine:
    """One event.

    Attributes:
        time: when it happened, in seconds since the epoch.
        source: the part of the program that logs it: sched, cache, knob, mqtt, ...
        request_id, chat: the event's request, and the id of its chat, as links; empty if there is
            none.
    """

    time: float
    level: Level
    source: str
    text: str
    request_id: str = ""
    chat: str = ""


class Subject(NamedTuple):
    """The chat of a request, as shown in a line, and its id; empty if there is none."""

    name: str
    chat: str = ""


def engine_events(
    record: StepRecord, epoch: float = 0.0, of: Callable[[str], Subject] = Subject
) -> list[LogLine]:
    """The events of one step.

    Evictions are only logged at debug level: a pool under pressure has some in every step, and 50
    lines a second would push out everything else.

    Args:
        epoch: the time at which the engine's clock stood at 0, in seconds since the epoch.
        of: returns the chat of a request.
    """
    lines = []

    def say(level: Level, source: str, text: str, at: float, about: Sequence[str] = ()) -> None:
        request_id, *_ = (*about, "")
        chat = of(request_id).chat if request_id else ""
        lines.append(LogLine(epoch + at, level, source, text, request_id, chat))

    def names(requests: Sequence[str]) -> str:
        return ", ".join(of(request_id).name for request_id in requests)

    blocks = f"{count(record.free_blocks)} free, {count(record.cached_blocks)} cached blk"
    takers = dict(zip(record.preempted, record.preempted_for, strict=False))
    for request_id in record.preempted:
        swapped = request_id in record.swapped
        fate = "its blocks go to host memory" if swapped else "its blocks go, it is recomputed"
        taker = takers.get(request_id, "")
        text = f"preempt {names([request_id])}{f' for {names([taker])}' if taker else ''}: {fate}"
        say(Level.WARNING, "sched", f"{text} ({blocks})", record.start, [request_id])
    evicted = len(record.blocks.blocks(BlockChange.EVICTED))
    if evicted:
        say(Level.DEBUG, "cache", f"evict {count(evicted)} cached blk", record.start)
    if record.admitted:
        hit, queried = record.prefix_hit_tokens, record.prefix_queried_tokens
        # A request that resumes after a preemption is not looked up in the prefix cache again.
        back = f"{count(record.swapped_in_blocks)} blk from host memory" if record.restored else ""
        tokens = f"{count(queried)} tok, {count(hit)} cached" if queried else back or "recompute"
        if queried and back:
            tokens += f", {back}"
        if record.padding_tokens:
            tokens += f", {count(record.padding_tokens)} of padding"
        text = f"admit {names(record.admitted)}: {tokens}"
        say(Level.INFO, "sched", text, record.start, record.admitted)
    if record.error:
        say(Level.ERROR, "engine", f"step {count(record.step)} failed: {record.error}", record.end)
    for ended in record.finished:
        tokens = f"{count(ended.output_tokens)} tok"
        text = f"finish {of(ended.request_id).name}: {tokens}, {ended.reason}"
        say(Level.INFO, "sched", text, record.end, [ended.request_id])
    return lines


def knob_event(change: KnobChange, epoch: float = 0.0) -> LogLine:
    """The log line of a change of knobs; for `epoch`, see `engine_events`."""
    undo = "undo: " if change.undoes else ""
    text = f"{undo}{change_text(change)} by {change.who}"
    level = Level.ERROR if is_fallback(change) else Level.INFO
    return LogLine(epoch + change.time, level, "knob", text)


def is_fallback(change: KnobChange) -> bool:
    """Whether the engine made this change because a policy raised. Then `who` is that policy, with
    the reason."""
    policy = change.before.policy
    return policy != change.after.policy and change.who.startswith(f"{policy}: ")
