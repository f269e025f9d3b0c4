"""Comparison: peers that are loaded, and the rounds in which they take turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.peers.peers import OURS
from benchmarks.peers.run import Measures
from benchmarks.peers.worker import Worker, WorkerError
from benchmarks.peers.workload import Recipe, Workload

Say = Callable[[str], None]

# Of what batchdeck serves when all requests are there at once.
SHARE_OF_CAPACITY = 0.8


@dataclass(slots=True)
class Comparison:
    """
    Attributes:
        workers: by name; one that fails is taken out.
        measures: by workload and peer, one for each round; None where the peer cannot take it.
        failed: why peers were taken out.
    """

    say: Say
    workers: dict[str, Worker] = field(default_factory=dict)
    measures: dict[str, dict[str, list[Measures] | None]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    _idle: dict[str, tuple[float, float]] = field(default_factory=dict)

    def round(self, recipes: Mapping[Recipe, float | None], number: int, is_kept: bool) -> None:
        """Every workload by every peer, one at a time; who is first in one changes by the round.

        Args:
            recipes: and the rate of their arrivals.
            is_kept: whether it counts, or only warms up.
        """
        for recipe, rate in recipes.items():
            workload = recipe.make(number, rate)
            results = self.measures.setdefault(recipe.name, {name: [] for name in self.workers})
            for name in _turned(list(self.workers), number):
                measured = self.run(name, workload)
                if name not in self.workers:
                    continue
                if measured is None:
                    results[name] = None
                elif is_kept:
                    kept = results[name]
                    assert kept is not None
                    kept.append(measured)
                self.say(f"{recipe.name} by {name}")

    def run(self, name: str, workload: Workload) -> Measures | None:
        """One workload by one peer while the others sleep; None if it cannot take it or fails."""
        others = [other for other in self.workers if other != name]
        before = {other: self.workers[other].cpu_seconds for other in others}
        start = time.monotonic()
        try:
            run = self.workers[name].run(workload)
        except WorkerError as error:
            self.drop(name, str(error))
            return None
        seconds = time.monotonic() - start
        for other in others:
            used, passed = self._idle.get(other, (0.0, 0.0))
            used += self.workers[other].cpu_seconds - before[other]
            self._idle[other] = used, passed + seconds
        return None if run is None else Measures.of(run)

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers.values():
            worker.close()

    def drop(self, name: str, why: str) -> None:
        self.failed[name] = why
        self.workers.pop(name).close()

    def rate(self, recipe: Recipe) -> float:
        """Requests a second near what batchdeck can serve, measured; the first run warms up."""
        ours = self.workers[OURS]
        ours.run(recipe.make(-2))
        run = ours.run(recipe.make(-1))
        assert run is not None
        return SHARE_OF_CAPACITY * recipe.sequences / run.seconds

    def results(self, workload: str) -> dict[str, Measures | None]:
        """Medians over the rounds, by peer."""
        return {
            name: None if rounds is None else Measures.median(rounds)
            for name, rounds in self.measures[workload].items()
            if rounds is None or rounds
        }

    def idle_cores(self) -> Iterator[tuple[str, float]]:
        """Cores that each peer took, on average, while another one ran."""
        for name, (used, passed) in self._idle.items():
            if passed:
                yield name, used / passed


def _turned(names: Sequence[str], number: int) -> list[str]:
    first = number % len(names) if names else 0
    return [*names[first:], *names[:first]]
