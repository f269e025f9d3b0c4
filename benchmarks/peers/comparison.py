"""Comparison: peers that are loaded, and the rounds in which they take turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from benchmarks.peers.peers import OUR_PLAIN
from benchmarks.peers.run import Measures
from benchmarks.peers.worker import Worker, WorkerError
from benchmarks.peers.workload import Recipe, Workload
from benchmarks.smoke import read_bandwidth

Say = Callable[[str], None]

# The rate of arrivals, as a share of what batchdeck serves when all requests are there at once.
SHARE_OF_CAPACITY = 0.8

_CPU = torch.device("cpu")


@dataclass(slots=True)
class Comparison:
    """The peers, and what was measured of them.

    Attributes:
        workers: the peers' workers, by name. One that fails is taken out.
        measures: for each workload and peer, the measures of each round; None where the peer cannot
            take the workload.
        failed: for each peer that was taken out, why.
    """

    say: Say
    workers: dict[str, Worker] = field(default_factory=dict)
    measures: dict[str, dict[str, list[Measures] | None]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    _idle: dict[str, tuple[float, float]] = field(default_factory=dict)

    def round(self, recipes: Mapping[Recipe, float | None], number: int, is_kept: bool) -> None:
        """Run every workload on every peer, one at a time. Which peer is first changes each round.

        Args:
            recipes: the rate of arrivals of each recipe, in requests a second.
            number: the number of the round.
            is_kept: whether the round counts, or only warms up.
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
        """Run one workload on one peer while the others sleep; None if it cannot take it or
        fails."""
        others = [other for other in self.workers if other != name]
        before = {other: self.workers[other].cpu_seconds for other in others}
        bandwidth = read_bandwidth(_CPU)
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
        # Memory of a shared machine reads 35 to 75 GB/s from one minute to the next.
        bandwidth = (bandwidth + read_bandwidth(_CPU)) / 2
        return None if run is None else Measures.of(run, bandwidth)

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers.values():
            worker.close()

    def drop(self, name: str, why: str) -> None:
        self.failed[name] = why
        self.workers.pop(name).close()

    def rate(self, recipe: Recipe) -> float:
        """A rate near what batchdeck can serve, in requests a second. It is measured; the first run
        warms up."""
        ours = self.workers[OUR_PLAIN]
        ours.run(recipe.make(-2))
        run = ours.run(recipe.make(-1))
        assert run is not None
        return SHARE_OF_CAPACITY * recipe.sequences / run.seconds

    def results(self, workload: str) -> dict[str, Measures | None]:
        """The medians over the rounds, by peer."""
        return {
            name: None if rounds is None else Measures.median(rounds)
            for name, rounds in self.measures[workload].items()
            if rounds is None or rounds
        }

    def idle_cores(self) -> Iterator[tuple[str, float]]:
        """How many cores each peer took on average while another one ran."""
        for name, (used, passed) in self._idle.items():
            if passed:
                yield name, used / passed


def _turned(names: Sequence[str], number: int) -> list[str]:
    first = number % len(names) if names else 0
    return [*names[first:], *names[:first]]
