"""Effect: the engine's figures before and after a change of knobs, and whether they are
comparable."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from engine.api.knobs import KnobChange
from engine.api.telemetry import Distribution

# With fewer samples than this on either side, a difference may be chance.
MIN_SAMPLES = 5
# A 99th percentile is near the largest sample, which is mostly chance with fewer samples.
MIN_TAIL_SAMPLES = 20
# Loads that differ by this factor are not comparable.
OTHER_LOAD = 2.0

Unit: TypeAlias = Literal["number", "seconds", "share"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One of the figures.

    Attributes:
        value: NaN without measurements.
        samples: the number of latencies behind the value; None if it comes from steps.
        least: the number of samples from which it is meaningful.
    """

    name: str
    value: float
    unit: Unit = "number"
    samples: int | None = None
    least: int = MIN_SAMPLES

    @property
    def is_known(self) -> bool:
        return self.samples is None or self.samples >= self.least


@dataclass(frozen=True, slots=True)
class Figures:
    """Measurements over some seconds. A figure without measurements is NaN.

    Attributes:
        throughput: output tokens a second, over the time with work.
        ttft: latencies of the requests that got their first token, in seconds.
        tpot: latencies of the requests that ended, in seconds.
        itl: the gaps between tokens, in seconds.
        sequences: sequences in a step, on average over the steps' time.
        kv_waste: the share of allocated token slots that were unused, over all steps.
        underway: requests running or waiting, on average over the steps' time.
        prompts: prompt lengths of the requests that arrived, in tokens.
        seconds: the length of that time.
    """

    throughput: float
    ttft: Distribution
    tpot: Distribution
    itl: Distribution
    sequences: float
    kv_waste: float
    underway: float
    prompts: Distribution
    seconds: float

    def rows(self) -> Iterator[Figure]:
        """The figures, the most important one first."""
        yield Figure("tok/s", self.throughput)
        yield Figure("TTFT p50", self.ttft.p50, "seconds", self.ttft.count)
        yield Figure("TTFT p99", self.ttft.p99, "seconds", self.ttft.count, MIN_TAIL_SAMPLES)
        yield Figure("TPOT p50", self.tpot.p50, "seconds", self.tpot.count)
        yield Figure("ITL p99", self.itl.p99, "seconds", self.itl.count, MIN_TAIL_SAMPLES)
        yield Figure("batch", self.sequences)
        yield Figure("KV waste", self.kv_waste, "share")


class Obstacle(NamedTuple):
    """Why the figures of both sides are not comparable.

    Attributes:
        words: a text; `{}` stands for the two numbers, if there are any.
        was, now: a number that differs too much.
    """

    words: str
    was: float | None = None
    now: float | None = None


class Pair(NamedTuple):
    """A figure before and after the change.

    Attributes:
        few: why this pair has too few samples to compare; empty if it has enough.
    """

    before: Figure
    since: Figure
    few: str


@dataclass(frozen=True, slots=True)
class Effect:
    """A change of knobs, with the measurements before and after it.

    The two are comparable if on each side at least `MIN_SAMPLES` requests arrived, and if neither
    the number of concurrent requests nor the length of their prompts differs by a factor of
    `OTHER_LOAD`. A latency also needs enough samples of its own.
    """

    change: KnobChange
    before: Figures
    since: Figures

    @property
    def obstacle(self) -> Obstacle | None:
        """Why the two are not comparable; None if they are."""
        before, since = self.before, self.since
        for when, of in self._sides():
            if of.prompts.count < MIN_SAMPLES:
                return Obstacle(f"{of.prompts.count or 'none'} came {when}")
            if math.isnan(of.throughput):
                return Obstacle(f"nothing ran {when}")
        if _differ(before.underway, since.underway):
            return Obstacle("load {} requests under way", before.underway, since.underway)
        if _differ(before.prompts.mean, since.prompts.mean):
            return Obstacle("prompts of {} tokens", before.prompts.mean, since.prompts.mean)
        return None

    def pairs(self) -> Iterator[Pair]:
        """Each figure before and after."""
        for then, now in zip(self.before.rows(), self.since.rows(), strict=True):
            few = ""
            for (when, _), of in zip(self._sides(), (then, now), strict=True):
                if not few and not of.is_known:
                    few = f"{of.samples or 'no'} sample{'s' * (of.samples != 1)} {when}"
            yield Pair(then, now, few)

    @property
    def is_settled(self) -> bool:
        """Whether each figure that was known before is comparable."""
        return self.obstacle is None and all(
            pair.since.is_known or not pair.before.is_known for pair in self.pairs()
        )

    def _sides(self) -> Iterator[tuple[str, Figures]]:
        """The measurements of both sides, each with its time span in words. Neither span reaches
        back to the engine's start."""
        for when, of in (("before", self.before), ("since", self.since)):
            yield f"in {max(of.seconds, 1):.0f}s {when}", of


def _differ(one: float, other: float) -> bool:
    """Whether one is at least `OTHER_LOAD` times the other."""
    small, large = sorted((one, other))
    return math.isfinite(small + large) and large >= OTHER_LOAD * max(small, 1e-9)
