"""VirtualClock: seconds that pass only when somebody lets them."""

from __future__ import annotations


class VirtualClock:
    """An `engine.driving.drive.Clock` that costs no real time."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def sleep_until(self, moment: float) -> None:
        """Go to `moment`; time never runs back."""
        self._now = max(self._now, moment)
