"""Effect: how the engine did before a change of knobs and how it has done since."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from engine.api.knobs import KnobChange
from engine.api.telemetry import Distribution
from widgets.figures import UNKNOWN, compact, ms, percent


@dataclass(frozen=True, slots=True)
class Figure:
    """One of the figures.

    Attributes:
        samples: how many the value comes from; None if it comes from all steps.
    """

    name: str
    value: str
    samples: int | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured over some seconds; NaN where nothing was.

    Attributes:
        throughput: output tokens a second of the time in which there was something to compute.
        ttft, tpot: of the requests whose first token came, and of those that ended; in seconds.
        sequences: how many got tokens in a step, weighted by the time that the steps took.
        kv_waste: given but unused token slots over given ones, of all steps.
    """

    throughput: float
    ttft: Distribution
    tpot: Distribution
    sequences: float
    kv_waste: float

    def rows(self) -> Iterator[Figure]:
        """What matters most first."""
        yield Figure("tok/s", compact(self.throughput))
        yield Figure("TTFT p50", ms(self.ttft.p50), self.ttft.count)
        yield Figure("TPOT p50", ms(self.tpot.p50), self.tpot.count)
        yield Figure("batch", compact(self.sequences))
        yield Figure("KV waste", percent(self.kv_waste))


@dataclass(frozen=True, slots=True)
class Effect:
    """A change of knobs with what was measured on both sides of it."""

    change: KnobChange
    before: Figures
    since: Figures

    @property
    def line(self) -> str:
        """What is known, in one line: tok/s 310→402 · TTFT p50 190→240 · …; empty while nothing has
        run since."""
        if math.isnan(self.since.throughput):
            return ""
        pairs = zip(self.before.rows(), self.since.rows(), strict=True)
        return " · ".join(
            f"{then.name} {then.value}→{now.value}"
            for then, now in pairs
            if not then.value == now.value == UNKNOWN
        )
