"""Effect: the engine's figures before a change of knobs, and those since."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from engine.api.knobs import KnobChange
from engine.api.telemetry import Distribution
from widgets.figures import UNKNOWN, compact, duration, percent


@dataclass(frozen=True, slots=True)
class Figure:
    """One of the figures, as text.

    Attributes:
        samples: how many latencies the value comes from; None if it comes from steps.
    """

    name: str
    value: str
    samples: int | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured over some seconds. A figure for which there was nothing to measure is NaN.

    Attributes:
        throughput: output tokens a second, over the time in which there was something to compute.
        ttft: latencies of the requests whose first token came, in seconds.
        tpot: latencies of the requests that ended, in seconds.
        sequences: how many sequences were computed in a step, on average over the steps' time.
        kv_waste: the share of given token slots that were unused, over all steps.
    """

    throughput: float
    ttft: Distribution
    tpot: Distribution
    sequences: float
    kv_waste: float

    def rows(self) -> Iterator[Figure]:
        """The figures as text, the one that matters most first."""
        yield Figure("tok/s", compact(self.throughput))
        yield Figure("TTFT p50", duration(self.ttft.p50), self.ttft.count)
        yield Figure("TPOT p50", duration(self.tpot.p50), self.tpot.count)
        yield Figure("batch", compact(self.sequences))
        yield Figure("KV waste", percent(self.kv_waste))


@dataclass(frozen=True, slots=True)
class Effect:
    """A change of knobs, with what was measured before and since."""

    change: KnobChange
    before: Figures
    since: Figures

    @property
    def line(self) -> str:
        """The figures that are known in one line, such as tok/s 310→402 · TTFT p50 190→240. It is
        empty while nothing has run since the change."""
        if math.isnan(self.since.throughput):
            return ""
        pairs = zip(self.before.rows(), self.since.rows(), strict=True)
        return " · ".join(
            f"{then.name} {then.value}→{now.value}"
            for then, now in pairs
            if not then.value == now.value == UNKNOWN
        )
