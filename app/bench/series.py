"""Series: a quantity over time, for a run of any length, in bounded memory."""

from __future__ import annotations

MOST_BUCKETS = 512


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
