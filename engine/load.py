"""Load: the requests of a measurement, when they come and how they ended, in plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.errors import ErrorInfo
from engine.request import FinishReason, Origin, SamplingParams
from engine.stream import Timings, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One request of a load.

    Attributes:
        arrival: seconds after the start of the run.
        sampling: `max_tokens` is what the request announces, and what reserving policies set aside.
            `min_tokens` is where it really ends, under a runner that ends a sequence as soon as it
            may; equal to `max_tokens` where the length is known beforehand.
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
        token_ids: prompt and output, for a next turn that goes on from them.
    """

    task: Task
    finished: float
    reason: FinishReason
    usage: Usage
    timings: Timings
    token_ids: tuple[int, ...]
    error: ErrorInfo | None = None


class Load(Protocol):
    """Where tasks come from. Times are seconds after the start of the run."""

    def due(self, now: float) -> Sequence[Task]:
        """Tasks that have arrived by `now` and were not given before, in order of arrival."""
        ...

    @property
    def next_arrival(self) -> float | None:
        """When the next task comes; None if none will before another one ends."""
        ...

    def ended(self, outcome: Outcome) -> None:
        """A task ended; a closed loop or a conversation may go on from here."""
        ...


class Watcher(Protocol):
    """Told what a run gives."""

    def emitted(self, now: float, gap: float | None) -> None:
        """An output token, and the seconds since the request's one before; None for its first."""
        ...

    def ended(self, outcome: Outcome) -> None: ...
