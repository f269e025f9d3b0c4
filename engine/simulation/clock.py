"""VirtualClock: seconds that pass only on demand."""

from __future__ import annotations


class VirtualClock:
    """An `engine.driving.drive.Clock` that takes no real time."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def sleep_until(self, moment: float) -> None:
        """Advance to `moment`; time never runs back."""
        self._now = max(self._now, moment)
