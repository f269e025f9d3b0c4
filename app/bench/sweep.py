"""Sweep: a workload at rising rates under several policies, to find where each stops keeping up."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from app.bench.measurement import Measurement
from app.bench.report import Figures
from app.bench.runs import Plan, run_all
from app.bench.scripts import Synthetic
from app.bench.setting import Setting
from app.bench.testbed import Testbed
from engine.api.knobs import Knobs

# The share of arriving requests that must end. Of 1,000 requests with 100 in flight at a time,
# chance alone makes 3 % more or fewer end.
KEPT_UP = 0.9
# The share of requests that must meet the targets.
ATTAINMENT = 0.9
# How long the batch takes to fill, and the minimum length of a window: both are multiples of the
# median time from first to last token.
FILLING = 3.0
WINDOW = 5.0


@dataclass(frozen=True, slots=True)
class Point:
    """One policy at one rate.

    Throughputs are measured in a window. It begins when the batch has filled, which takes `FILLING`
    times the median time from first to last token. It ends when the last request gets its first
    token; above saturation the queue keeps the batch full until then, so that nothing drains yet.
    If the window is shorter than `WINDOW` such medians, throughputs are those of the whole run.
    They are then too low, because they include the filling and draining of the batch. The latencies
    in `figures` are those of all requests.

    Attributes:
        rate: configured requests a second.
        served: requests a second that succeeded.
        kept_up: `served` divided by `arrived`.
        output: output tokens a second.
        attained: of the requests that arrived in the window, the share that met every target. It is
            the share of all requests if none arrived in the window, or if the window is the whole
            run.
        arrived: actual arrivals a second. Arrivals are random, so this differs from `rate`.
        needs: the number of requests that would make the window long enough; 0 if it is.
    """

    rate: float
    served: float
    kept_up: float
    output: float
    attained: float
    figures: Figures
    arrived: float
    needs: int

    @property
    def goodput(self) -> float:
        """Requests a second that succeeded and met every target."""
        return self.served * self.attained

    @staticmethod
    def of(rate: float, measured: Measurement, figures: Figures) -> Point:
        last, count = max(measured.offered), len(measured.offered)
        arrived = count / last
        lives = [e2el - ttft for e2el, ttft in zip(measured.e2el, measured.ttft, strict=True)]
        life = statistics.median(lives or [0.0])
        begun = zip(measured.arrived, measured.ttft, strict=True)
        low, high = FILLING * life, max((come + ttft for come, ttft in begun), default=last)
        needs = 0
        if high - low < WINDOW * life:
            # One more request moves the end of the window by one gap: that between two arrivals, or
            # that between two completions (Little's law), whichever is longer.
            pace = min(arrived, measured.peak_concurrency / life)
            needs = count + math.ceil(((FILLING + WINDOW) * life - high) * pace)
            low, high = 0.0, max(measured.finished)
        ended = sum(low < moment <= high for moment in measured.finished)
        met = [
            ok
            for come, ok in zip(measured.offered, measured.met, strict=True)
            if low < come <= high
        ] or measured.met
        span = high - low
        return Point(
            rate=rate,
            served=ended / span,
            kept_up=ended / span / arrived,
            output=measured.output.between(low, high) / span,
            attained=sum(met) / len(met),
            figures=figures,
            arrived=arrived,
            needs=needs,
        )


@dataclass(frozen=True, slots=True)
class Curve:
    """The points of one policy, at rising rates."""

    policy: str
    points: Sequence[Point]

    @property
    def knee(self) -> Point | None:
        """The last point before the first that does not keep up. A point keeps up if at least 90 %
        as many requests end as arrive. Beyond the knee, throughput gains little and latency grows
        with the length of the run (Jain, "The Art of Computer Systems Performance Analysis", 1991,
        section 3.3)."""
        return self._last(lambda point: point.kept_up >= KEPT_UP)

    @property
    def capacity(self) -> Point | None:
        """The last point before the first at which less than 90 % of the requests meet the targets.
        This is goodput as DistServe (OSDI'24, section 2) defines it."""
        return self._last(lambda point: point.attained >= ATTAINMENT)

    @property
    def unsure(self) -> Point | None:
        """The point after the knee, if its run is too short to say that the policy does not keep up
        there."""
        place = 0 if self.knee is None else self.points.index(self.knee) + 1
        after = self.points[place] if place < len(self.points) else None
        return after if after is not None and after.needs else None

    def _last(self, holds: Callable[[Point], bool]) -> Point | None:
        found = None
        for point in self.points:
            if not holds(point):
                break
            found = point
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A sweep to run.

    Attributes:
        workload: the requests; each run replaces its rate by one of `rates`.
        rates: requests a second, rising.
        knobs: the knobs for each policy's label.
        targets: upper limits in milliseconds by name; see `Measurement`.
        seed: the seed of the workload, the same in every run.
    """

    workload: Synthetic
    rates: Sequence[float]
    knobs: Mapping[str, Knobs]
    targets: Mapping[str, float]
    seed: int = 0

    @property
    def num_requests(self) -> int:
        return self.workload.num_requests * len(self.rates) * len(self.knobs)

    def run(
        self, testbed: Testbed, begins: Callable[[str], None], ended: Callable[[], None]
    ) -> Iterator[Curve]:
        """Yield a curve for each policy; every policy gets the same requests. A curve that is
        interrupted (SIGINT) is the last one, and lacks the point that was running.

        Args:
            begins: called with a description of each run when it begins.
            ended: called after every request.

        Raises:
            StalledError: some policy would make requests wait forever.
        """
        for policy, knobs in self.knobs.items():
            points: list[Point] = []
            for rate in self.rates:
                begins(f"{policy} at {rate:g}/s")
                plan = Plan(
                    workload=replace(self.workload, request_rate=rate),
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
