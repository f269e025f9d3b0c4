"""Sweep: a load at rising rates under several policies, and where each stops keeping up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from app.bench.measurement import Measurement
from app.bench.report import Figures
from app.bench.runs import Plan, run_all
from app.bench.scripts import Synthetic
from app.bench.setting import Setting
from app.bench.testbed import Testbed
from engine.knobs import Knobs

# Of 1,000 requests with 100 in flight at a time, chance alone makes 3 % more or fewer end.
KEPT_UP = 0.9
ATTAINMENT = 0.9


@dataclass(frozen=True, slots=True)
class Point:
    """One policy at one rate.

    Throughputs are those of the second half of the arrivals, when the batch has filled and nothing
    drains yet. Latencies, in `figures`, are those of all requests.

    Attributes:
        rate: requests a second that were offered.
        served: requests a second that succeeded.
        kept_up: requests that succeeded over requests that arrived.
        output: tokens a second.
        attained: share of all requests that met every target.
    """

    rate: float
    served: float
    kept_up: float
    output: float
    attained: float
    figures: Figures

    @property
    def goodput(self) -> float:
        """Requests a second that ended and met every target."""
        return self.served * self.attained

    @staticmethod
    def of(rate: float, measured: Measurement, figures: Figures) -> Point:
        last = max(measured.offered)
        half = last / 2
        came = sum(half < moment <= last for moment in measured.offered)
        ended = sum(half < moment <= last for moment in measured.finished)
        span = last - half
        return Point(
            rate=rate,
            served=ended / span,
            kept_up=ended / came,
            output=measured.output.between(half, last) / span,
            attained=measured.good / (measured.completed + measured.failed),
            figures=figures,
        )


@dataclass(frozen=True, slots=True)
class Curve:
    """One policy at rising rates."""

    policy: str
    points: Sequence[Point]

    @property
    def knee(self) -> Point | None:
        """The last point before the first that does not keep up: where at least 90 % as many
        requests end as arrive. Beyond it throughput gains little and latency grows with the length
        of the run (Jain, "The Art of Computer Systems Performance Analysis", 1991, section 3.3)."""
        return self._last(lambda point: point.kept_up >= KEPT_UP)

    @property
    def capacity(self) -> Point | None:
        """The last point before the first at which less than 90 % of the requests meet the targets:
        goodput as DistServe (OSDI'24, section 2) has it."""
        return self._last(lambda point: point.attained >= ATTAINMENT)

    def _last(self, holds: Callable[[Point], bool]) -> Point | None:
        found = None
        for point in self.points:
            if not holds(point):
                break
            found = point
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What is to be run.

    Attributes:
        load: at each of `rates`, which rise.
        knobs: of each policy, by its label.
        targets: milliseconds by name, as `Measurement` has them.
    """

    load: Synthetic
    rates: Sequence[float]
    knobs: Mapping[str, Knobs]
    targets: Mapping[str, float]
    seed: int = 0

    @property
    def num_requests(self) -> int:
        return self.load.num_requests * len(self.rates) * len(self.knobs)

    def run(
        self, testbed: Testbed, begins: Callable[[str], None], ended: Callable[[], None]
    ) -> Iterator[Curve]:
        """A curve for each policy; every policy gets the same requests. One that is interrupted
        (SIGINT) is the last, without the point that was being run.

        Args:
            begins: told what runs now.
            ended: called after every request.

        Raises:
            StalledError: under some policy requests would wait for ever.
        """
        for policy, knobs in self.knobs.items():
            points: list[Point] = []
            for rate in self.rates:
                begins(f"{policy} at {rate:g}/s")
                plan = Plan(
                    load=replace(self.load, request_rate=rate),
                    settings=[(Setting(policy, {}), knobs)],
                    targets=self.targets,
                    seed=self.seed,
                )
                (run,) = run_all(plan, testbed, ended=ended)
                if run.partial:
                    yield Curve(policy, points)
                    return
                points.append(Point.of(rate, run.measured, run.figures))
            yield Curve(policy, points)
