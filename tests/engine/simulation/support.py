"""Traffic and a watcher for tests of the simulation."""

from __future__ import annotations

import random
from collections.abc import Sequence

from engine.api.sampling import SamplingParams
from engine.driving.drive import drive
from engine.driving.traffic import Outcome, Task, Traffic
from engine.simulation.simulation import Simulated


class Tasks:
    """A `Traffic` (`engine.driving`) of prepared tasks, at most `concurrency` of them at once."""

    def __init__(self, tasks: Sequence[Task], concurrency: int | None = None) -> None:
        self._tasks = list(reversed(tasks))
        self._room = concurrency if concurrency is not None else len(tasks)

    def due(self, now: float) -> list[Task]:
        due = []
        while self._tasks and self._room and self._tasks[-1].arrival <= now:
            due.append(self._tasks.pop())
            self._room -= 1
        return due

    @property
    def next_arrival(self) -> float | None:
        return self._tasks[-1].arrival if self._tasks and self._room else None

    def ended(self, outcome: Outcome) -> None:
        self._room += 1


class Outcomes:
    """An `engine.driving.traffic.Watcher` that keeps everything."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.gaps: list[float | None] = []

    def emitted(self, now: float, gap: float | None) -> None:
        self.gaps.append(gap)

    def ended(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    @property
    def timings(self) -> list[tuple[float | None, ...]]:
        """(TTFT, TPOT, end) of each request, in the order of ending."""
        return [(o.timings.ttft, o.timings.tpot, o.finished) for o in self.outcomes]


def simulate(engine: Simulated, traffic: Traffic, watcher: Outcomes) -> float:
    """Virtual seconds until the last task ended."""
    return drive(engine.core, traffic, engine.clock, watcher)


def make_tasks(
    count: int,
    *,
    rate: float = 0.0,
    prompt: tuple[int, int] = (16, 200),
    output: tuple[int, int] = (1, 60),
    seed: int = 0,
) -> list[Task]:
    """Poisson arrivals at `rate` a second, or all at 0; lengths uniform within bounds."""
    rng = random.Random(seed)
    now = 0.0
    tasks = []
    for number in range(count):
        now += rng.expovariate(rate) if rate else 0.0
        length = rng.randint(*output)
        tasks.append(
            Task(
                request_id=str(number),
                arrival=now,
                prompt_token_ids=[rng.randrange(2, 1000) for _ in range(rng.randint(*prompt))],
                sampling=SamplingParams(temperature=0.0, min_tokens=length, max_tokens=output[1]),
            )
        )
    return tasks
