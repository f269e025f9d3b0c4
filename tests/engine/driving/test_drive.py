"""drive: virtual time goes on, wherever a run starts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine.api.sampling import SamplingParams
from engine.driving.drive import drive
from engine.driving.traffic import Outcome, Task
from tests.support.clock import VirtualClock
from tests.support.harness import CoreHarness


class SleepingClock(VirtualClock):
    """Sleeping sets it; a run that sleeps on and on fails."""

    def __init__(self, now: float) -> None:
        super().__init__(now)
        self.sleeps = 0

    def sleep_until(self, moment: float) -> None:
        self.sleeps += 1
        assert self.sleeps < 100, "time stands still"
        self.now = max(self.now, moment)


class OneTask:
    """Traffic of one task, and its own watcher."""

    def __init__(self, arrival: float) -> None:
        sampling = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
        self._tasks = [
            Task(request_id="a", arrival=arrival, prompt_token_ids=[1, 2], sampling=sampling)
        ]
        self.outcomes: list[Outcome] = []

    @property
    def next_arrival(self) -> float | None:
        return self._tasks[0].arrival if self._tasks else None

    def due(self, now: float) -> Sequence[Task]:
        due = [task for task in self._tasks if task.arrival <= now]
        self._tasks = [task for task in self._tasks if task.arrival > now]
        return due

    def emitted(self, now: float, gap: float | None) -> None: ...

    def ended(self, outcome: Outcome) -> None:
        if not self.outcomes:  # Traffic and watcher are both told.
            self.outcomes.append(outcome)


@pytest.mark.parametrize("start", [0.0, 0.7, 1e9])
@pytest.mark.parametrize("arrival", [0.1, 0.3])
def test_an_arrival_that_rounding_puts_before_itself(start: float, arrival: float) -> None:
    """0.7 + 0.1 - 0.7 is less than 0.1."""
    clock = SleepingClock(start)
    engine = CoreHarness(clock=clock)
    traffic = OneTask(arrival)
    assert drive(engine.core, traffic, clock, traffic) == traffic.outcomes[0].finished
    assert traffic.outcomes[0].finished == pytest.approx(arrival, abs=0.1)
