"""drive: sends traffic through a core, in real or in virtual time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from engine.api.client import Submission
from engine.api.waiting import in_words
from engine.batch.plan import End, Stretch
from engine.core.core import EngineCore
from engine.driving.traffic import Outcome, Task, Traffic, Watcher


class Clock(Protocol):
    """Returns monotonic seconds when called, and is the only way to let time pass."""

    def __call__(self) -> float: ...

    def sleep_until(self, moment: float) -> None:
        """Return at `moment` or later; at once if it has passed."""
        ...


class WallClock:
    """Real time."""

    def __call__(self) -> float:
        return time.perf_counter()

    def sleep_until(self, moment: float) -> None:
        time.sleep(max(0.0, moment - time.perf_counter()))


class StalledError(Exception):
    """Requests wait and nothing will ever move them, as in a pause or when a policy holds them."""


@dataclass(slots=True)
class _Running:
    task: Task
    last_token: float | None = None

    def outcome(self, end: End, finished: float) -> Outcome:
        """The task's outcome, `finished` seconds after the start."""
        return Outcome(
            self.task, finished, end.reason, end.usage, end.timings, end.token_ids, end.error
        )


def drive(
    core: EngineCore,
    traffic: Traffic,
    clock: Clock,
    watcher: Watcher,
    repeated: Callable[[Stretch], None] | None = None,
) -> float:
    """Submit the tasks of the traffic as they arrive and step the core until all have ended.

    The core runs on this thread, so that only the engine is measured, without a text thread or a
    screen. A task arrives when the traffic says so, even if a step was running then.

    Args:
        clock: the clock that the core reads.
        watcher: notified of each output token and each end.
        repeated: called with each stretch of steps that a simulation takes at once, of whose tokens
            the watcher is not notified; if None, every step is taken by itself.

    Returns:
        seconds from the start to the end of the last task.

    Raises:
        StalledError: requests wait, and none of them can ever run.
    """
    start = clock()
    running: dict[str, _Running] = {}
    finished = reached = 0.0
    while True:
        # In floats, (start + arrival) - start may be less than arrival. Virtual time would stop at
        # that moment for ever, so a moment slept for counts as reached.
        for task in traffic.due(max(clock() - start, reached)):
            running[task.request_id] = _Running(task)
            submission = Submission(
                request_id=task.request_id, origin=task.origin, priority=task.priority
            )
            core.add_request(submission, task.prompt_token_ids, task.sampling, start + task.arrival)
        outputs = core.step()
        now = clock()
        for output in outputs:
            state = running[output.request_id]
            for _ in output.token_ids:
                watcher.emitted(now, None if state.last_token is None else now - state.last_token)
                state.last_token = now
            end = output.end
            if end is not None:
                del running[output.request_id]
                finished = now - start
                outcome = state.outcome(end, finished)
                watcher.ended(outcome)
                traffic.ended(outcome)
        arrival = traffic.next_arrival
        if not core.idle:
            if repeated is None:
                continue
            stretch = core.repeat(math.inf if arrival is None else start + arrival)
            if stretch is not None:
                repeated(stretch)
                for request_id in stretch.request_ids:
                    running[request_id].last_token = stretch.ends[-1]
            continue
        moments = [] if arrival is None else [start + arrival]
        if core.next_wake is not None:
            moments.append(core.next_wake)
        if not moments:
            if running:
                raise StalledError(f"{len(running)} requests wait: {in_words(core.head_wait)}")
            return finished
        clock.sleep_until(min(moments))
        if arrival is not None and clock() >= start + arrival:
            reached = arrival
