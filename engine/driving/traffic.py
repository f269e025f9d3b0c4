"""Traffic: the requests of a measurement, when they arrive and how they end, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.api.errors import ErrorInfo
from engine.api.lifecycle import FinishReason, Timings
from engine.api.origin import Origin
from engine.api.sampling import SamplingParams
from engine.api.stream import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One request of the traffic.

    Attributes:
        arrival: seconds after the start of the run.
        sampling: `max_tokens` is what the request announces, and what reserving policies set aside.
            `min_tokens` is where it really ends, under a runner that ends a sequence as soon as it
            may. The two are equal where the length is known beforehand.
    """

    request_id: str
    arrival: float
    prompt_token_ids: Sequence[int]
    sampling: SamplingParams
    origin: Origin = Origin()
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a task ended.

    Attributes:
        finished: seconds after the start of the run.
        token_ids: ids of the prompt and then of the output; a next turn may go on from them.
    """

    task: Task
    finished: float
    reason: FinishReason
    usage: Usage
    timings: Timings
    token_ids: Sequence[int]
    error: ErrorInfo | None = None


class Traffic(Protocol):
    """Where tasks come from. Times are seconds after the start of the run."""

    def due(self, now: float) -> Sequence[Task]:
        """Tasks that have arrived by `now` and were not given before, in order of arrival."""
        ...

    @property
    def next_arrival(self) -> float | None:
        """When the next task comes; None if none will before another one ends."""
        ...

    def ended(self, outcome: Outcome) -> None:
        """Take in that a task ended; a closed loop or a conversation may go on from here."""
        ...


class Watcher(Protocol):
    """What is told each output token and each end of a run."""

    def emitted(self, now: float, gap: float | None) -> None:
        """A request got an output token.

        Args:
            now: clock time of the token, seconds.
            gap: seconds since the request's token before; None for its first.
        """
        ...

    def ended(self, outcome: Outcome) -> None: ...
