"""Histogram and Series: very many samples, and a quantity over time, in little memory."""

from __future__ import annotations

import math

WIDTH = 1.001
_PER_LOG = 1 / math.log(WIDTH)
MOST_BUCKETS = 512


class Histogram:
    """Counts of positive samples in buckets, each 0.1 % wider than the one before.

    Each sample counts as the geometric middle of its bucket, so quantiles are within 0.05 % of the
    exact ones. The mean is exact. Samples from a microsecond to a day take at most 25,200 buckets,
    however many there are.
    """

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0.0
        self._zeros = 0
        self._buckets: dict[int, int] = {}

    def add(self, sample: float, times: int = 1) -> None:
        """Add one sample, or `times` equal ones. A sample that is not above 0 counts as 0."""
        self.count += times
        if sample <= 0:
            self._zeros += times
            return
        self._sum += sample * times
        bucket = math.floor(math.log(sample) * _PER_LOG)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + times

    @property
    def mean(self) -> float:
        """The mean of all samples; NaN without samples."""
        return self._sum / self.count if self.count else math.nan

    def percentile(self, q: float) -> float:
        """The q-quantile, between two samples as numpy interpolates; NaN without samples."""
        if not self.count:
            return math.nan
        position = q * (self.count - 1)
        low = math.floor(position)
        below, above = self._sample(low), self._sample(min(low + 1, self.count - 1))
        return below + (above - below) * (position - low)

    def _sample(self, rank: int) -> float:
        """The sample with `rank` smaller samples before it."""
        seen = self._zeros
        if rank < seen:
            return 0.0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if rank < seen:
                return float(WIDTH ** (bucket + 0.5))
        raise AssertionError("the counts do not add up")


class Series:
    """Sums over equal spans of time, called buckets, from 0 on. Beyond `MOST_BUCKETS`, buckets are
    merged in pairs. So a long series always keeps at least half as many.

    Attributes:
        width: the length of a bucket, in seconds.
        sums: the sum of the amounts in each bucket.
    """

    def __init__(self, width: float = 0.05) -> None:
        self.width = width
        self.sums: list[float] = []

    def add(self, time: float, amount: float) -> None:
        """Add an amount at a time, in seconds from 0 on."""
        while time >= self.width * MOST_BUCKETS:
            self._join()
        bucket = int(time / self.width)
        if bucket >= len(self.sums):
            self.sums += [0.0] * (bucket + 1 - len(self.sums))
        self.sums[bucket] += amount

    def between(self, low: float, high: float) -> float:
        """The sum of the amounts from `low` to `high` (seconds). A bucket that lies only partly
        between them counts in proportion."""
        shares = (
            max(0.0, min(high, (i + 1) * self.width) - max(low, i * self.width)) / self.width
            for i in range(len(self.sums))
        )
        return sum(amount * share for amount, share in zip(self.sums, shares, strict=True))

    @property
    def middles(self) -> list[float]:
        """The time in the middle of each bucket."""
        return [(i + 0.5) * self.width for i in range(len(self.sums))]

    def _join(self) -> None:
        self.width *= 2
        self.sums = [sum(self.sums[i : i + 2]) for i in range(0, len(self.sums), 2)]
