"""Effect: the engine's figures before and after a change of knobs, and whether they are
comparable."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from engine.api.knobs import KnobChange
from engine.api.telemetry import Distribution
from widgets.figures import UNKNOWN, compact, duration, percent

# Fewer samples than these on either side mean chance.
MIN_SAMPLES = 5
# A 99th percentile is near the largest sample, which is mostly chance with fewer samples.
MIN_TAIL_SAMPLES = 20
# Loads that differ by this factor are not comparable.
OTHER_LOAD = 2.0


@dataclass(frozen=True, slots=True)
class Figure:
    """One of the figures, as text.

    Attributes:
        samples: the number of latencies behind the value; None if it comes from steps.
        least: the number of samples from which it is meaningful.
    """

    name: str
    value: str
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
        """The figures as text, the most important one first."""
        yield Figure("tok/s", compact(self.throughput))
        yield Figure("TTFT p50", duration(self.ttft.p50), self.ttft.count)
        yield Figure("TTFT p99", duration(self.ttft.p99), self.ttft.count, MIN_TAIL_SAMPLES)
        yield Figure("TPOT p50", duration(self.tpot.p50), self.tpot.count)
        yield Figure("ITL p99", duration(self.itl.p99), self.itl.count, MIN_TAIL_SAMPLES)
        yield Figure("batch", compact(self.sequences))
        yield Figure("KV waste", percent(self.kv_waste))


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
    def obstacle(self) -> str:
        """Why the two are not comparable; empty if they are."""
        before, since = self.before, self.since
        for when, of in self._sides():
            if of.prompts.count < MIN_SAMPLES:
                return f"{of.prompts.count or 'none'} came {when}"
            if math.isnan(of.throughput):
                return f"nothing ran {when}"
        if _differ(before.underway, since.underway):
            was, now = compact(before.underway), compact(since.underway)
            return f"load {was}→{now} requests under way"
        if _differ(before.prompts.mean, since.prompts.mean):
            was, now = compact(before.prompts.mean), compact(since.prompts.mean)
            return f"prompts of {was}→{now} tokens"
        return ""

    def pairs(self) -> Iterator[tuple[Figure, Figure, str]]:
        """Each figure before and after, and why these two are not comparable; empty if they are."""
        obstacle = self.obstacle
        for then, now in zip(self.before.rows(), self.since.rows(), strict=True):
            few = ""
            for (when, _), of in zip(self._sides(), (then, now), strict=True):
                if not few and not of.is_known:
                    few = f"{of.samples or 'no'} sample{'s' * (of.samples != 1)} {when}"
            yield then, now, obstacle or few

    @property
    def is_settled(self) -> bool:
        """Whether each figure that was known before is comparable."""
        pairs = zip(self.before.rows(), self.since.rows(), strict=True)
        return not self.obstacle and all(now.is_known or not then.is_known for then, now in pairs)

    @property
    def line(self) -> str:
        """The comparable figures in one line, such as tok/s 310→402 · TTFT p50 190→240ms, and why
        the others are not."""
        if self.obstacle:
            return f"not comparable: {self.obstacle}"
        known, few = [], []
        for then, now, why in self.pairs():
            if why:
                few.append(f"{then.name} not comparable: {why}")
            elif not then.value == now.value == UNKNOWN:
                known.append(f"{then.name} {_course(then.value, now.value)}")
        return " · ".join([*known, *few])

    def _sides(self) -> Iterator[tuple[str, Figures]]:
        """The measurements of both sides, with their time spans in words. Neither span reaches back
        to the start."""
        for when, of in (("before", self.before), ("since", self.since)):
            yield f"in {max(of.seconds, 1):.0f}s {when}", of


def _course(then: str, now: str) -> str:
    """Both values, with a common unit only once."""
    unit = now.lstrip("0123456789.")
    return f"{then.removesuffix(unit) if then.lstrip('0123456789.') == unit else then}→{now}"


def _differ(one: float, other: float) -> bool:
    """Whether one is at least `OTHER_LOAD` times the other."""
    small, large = sorted((one, other))
    return math.isfinite(small + large) and large >= OTHER_LOAD * max(small, 1e-9)
