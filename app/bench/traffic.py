"""ScriptedTraffic: an `engine.driving.traffic.Traffic` of single requests and of conversations."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from engine.api.lifecycle import FinishReason
from engine.api.sampling import SamplingParams
from engine.driving.traffic import Outcome, Task


@dataclass(frozen=True, slots=True)
class Turn:
    """A later turn of a conversation.

    Attributes:
        think: seconds from the end of the previous turn to this one.
        token_ids: what the user adds. The prompt is all tokens of the conversation so far, followed
            by these.
        sampling: as in a `Task`.
    """

    think: float
    token_ids: Sequence[int]
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class Script:
    """A conversation: its first request and its later turns. A single request has no later
    turns."""

    first: Task
    later: tuple[Turn, ...] = ()


class ScriptedTraffic:
    """Begins each script at its arrival, and each later turn some time after the previous turn has
    ended.

    Without `concurrency` this is an open loop: scripts begin however many are in flight. With it,
    at most so many scripts are in flight; a conversation is in flight while its user thinks, too. A
    script that must wait for a free slot arrives when it gets one, so that its latency counts from
    then. If all scripts arrive at 0, they are a burst, and with `concurrency` a closed loop.

    A conversation continues only after a turn that was answered.

    Args:
        scripts: in the order of their first arrivals. Each is taken from the iterator when its time
            has come, so that a generator holds only one at a time.
        concurrency: most scripts in flight, at least 1; None is no limit.
    """

    def __init__(self, scripts: Iterable[Script], concurrency: int | None = None) -> None:
        self._scripts = iter(scripts)
        self._next = next(self._scripts, None)
        self._concurrency = concurrency
        self._under_way: dict[str, tuple[Turn, ...]] = {}
        self._later: list[tuple[float, int, Task]] = []
        self._turns = 0
        self._freed = 0.0

    def due(self, now: float) -> Sequence[Task]:
        tasks = []
        while self._later and self._later[0][0] <= now:
            tasks.append(heapq.heappop(self._later)[2])
        while (arrival := self._next_script) is not None and arrival <= now:
            assert self._next is not None
            task = replace(self._next.first, arrival=arrival)
            self._under_way[task.request_id] = self._next.later
            tasks.append(task)
            self._next = next(self._scripts, None)
        tasks.sort(key=lambda task: task.arrival)
        return tasks

    @property
    def next_arrival(self) -> float | None:
        moments = [self._later[0][0]] if self._later else []
        script = self._next_script
        if script is not None:
            moments.append(script)
        return min(moments, default=None)

    def ended(self, outcome: Outcome) -> None:
        turns = self._under_way.pop(outcome.task.request_id)
        if not turns or outcome.reason in (FinishReason.ERROR, FinishReason.ABORT):
            self._freed = outcome.finished
            return
        turn, *later = turns
        self._turns += 1
        arrival = outcome.finished + turn.think
        task = replace(
            outcome.task,
            request_id=f"{outcome.task.request_id}+",
            arrival=arrival,
            prompt_token_ids=[*outcome.token_ids, *turn.token_ids],
            sampling=turn.sampling,
        )
        self._under_way[task.request_id] = tuple(later)
        heapq.heappush(self._later, (arrival, self._turns, task))

    @property
    def _next_script(self) -> float | None:
        """When the next script arrives; None if there is none, or if no slot is free for it."""
        if self._next is None:
            return None
        arrival = self._next.first.arrival
        if self._concurrency is None:
            return arrival
        if len(self._under_way) >= self._concurrency:
            return None
        return max(arrival, self._freed)
