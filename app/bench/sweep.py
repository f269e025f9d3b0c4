"""Sweep: a workload at rising rates under several policies, and where each stops keeping up."""

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

# Of 1,000 requests with 100 in flight at a time, chance alone makes 3 % more or fewer end.
KEPT_UP = 0.9
ATTAINMENT = 0.9
# Medians of the time from first to last token: what the batch fills in, and the least window.
FILLING = 3.0
WINDOW = 5.0


@dataclass(frozen=True, slots=True)
class Point:
    """One policy at one rate.

    Throughputs are those of a window: from when the batch has filled, `FILLING` times the median
    from first to last token, until the last request begins to come out. Above saturation the queue
    keeps the batch full until then; nothing drains yet. If the window is shorter than `WINDOW` such
    medians, they are of the whole run, its filling and draining included, and so too low.
    Latencies, in `figures`, are those of all requests.

    Attributes:
        rate: requests a second that were asked for.
        served: requests a second that succeeded.
        kept_up: `served` over requests a second that arrived.
        output: tokens a second.
        attained: share that met every target, in the end, of the requests that arrived in the
            window; of all, if none did or the window is too short.
        arrived: requests a second that arrived; arrivals are random.
        needs: requests for a window that is long enough; 0 if it is.
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
        """Requests a second that ended and met every target."""
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
            # A request more moves the end of the window by the gap of whichever is slower:
            # arrivals, or completions (Little's law).
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

    @property
    def unsure(self) -> Point | None:
        """The point after the knee, if its run is too short to say that it is not kept up with."""
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
    """What is to be run.

    Attributes:
        workload: at each of `rates`, which rise.
        knobs: of each policy, by its label.
        targets: milliseconds by name, as `Measurement` has them.
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
