"""VirtualClock: time that passes when a test says so."""

from __future__ import annotations


class VirtualClock:
    """A monotonic clock in seconds.

    Attributes:
        reads: how often it was looked at.
    """

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.reads = 0

    def __call__(self) -> float:
        self.reads += 1
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
