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
        sampling: `max_tokens` is the announced length, for which reserving policies allocate.
            `min_tokens` is the real length under a runner that ends a sequence as soon as it may.
            The two are equal if the length is known beforehand.
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
        token_ids: ids of the prompt, then of the output, which a next turn may continue.
    """

    task: Task
    finished: float
    reason: FinishReason
    usage: Usage
    timings: Timings
    token_ids: Sequence[int]
    error: ErrorInfo | None = None


class Traffic(Protocol):
    """A source of tasks. Times are seconds after the start of the run."""

    def due(self, now: float) -> Sequence[Task]:
        """New tasks that have arrived by `now`, in order of arrival."""
        ...

    @property
    def next_arrival(self) -> float | None:
        """When the next task arrives; None if none will before another one ends."""
        ...

    def ended(self, outcome: Outcome) -> None:
        """Record that a task ended; a closed loop or a conversation may then send its next
        request."""
        ...


class Watcher(Protocol):
    """Notified of each output token and each end of a run."""

    def emitted(self, now: float, gap: float | None) -> None:
        """A request got an output token.

        Args:
            now: clock time of the token, seconds.
            gap: seconds since the request's previous token; None for its first.
        """
        ...

    def ended(self, outcome: Outcome) -> None: ...
