"""Histogram: counts of numbers by size, as Prometheus defines them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
from prometheus_client.utils import floatToGoString

# From a millisecond to 43 minutes, for the first token after a very long queue.
FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


def token_bounds(most: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20 and so on, up to `most`."""

    def series() -> Iterator[int]:
        unit = 1
        while unit <= most:
            yield from (unit, 2 * unit, 5 * unit)
            unit *= 10

    return tuple(bound for bound in series() if bound <= most)


class Histogram:
    """Counts numbers by the smallest bound at or above each.

    prometheus-client's own adds one number at a time, behind a lock; here a second's numbers are
    added at once.

    Args:
        bounds: in ascending order.

    Attributes:
        sum: of all numbers.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = np.array(bounds, np.float64)
        named = map(floatToGoString, bounds)  # type: ignore[no-untyped-call,unused-ignore]
        self._names: list[str] = [*named, "+Inf"]
        self._counts = np.zeros(len(self._names), np.int64)
        self.sum = 0.0

    def add(self, numbers: Sequence[float]) -> None:
        if len(numbers):
            values = np.asarray(numbers, np.float64)
            places = np.searchsorted(self._bounds, values)
            self._counts += np.bincount(places, minlength=len(self._counts))
            self.sum += float(values.sum())

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """Each bound, and how many numbers are at or below it."""
        return list(zip(self._names, accumulate(self._counts.tolist()), strict=True))
