"""VirtualClock: time that passes when a test says so."""

from __future__ import annotations


class VirtualClock:
    """A monotonic clock in seconds."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
