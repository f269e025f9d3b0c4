"""LoopLag: how late the event loop runs what is due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from engine.api.telemetry import Samples

INTERVAL = 0.25
WINDOW = 60.0


class LoopLag:
    """Sets itself an alarm again and again and samples how late it rings.

    Four samples a second cost under 0.1 % of a core and are 240 in the window.
    """

    def __init__(self) -> None:
        self._samples = Samples(capacity=int(WINDOW / INTERVAL))
        self._alarm: asyncio.TimerHandle | None = None
        self._now: Callable[[], float] | None = None

    def start(self) -> None:
        """Must be called in the loop that is to be measured."""
        loop = asyncio.get_running_loop()
        self._now = loop.time

        def ring(due: float) -> None:
            self._samples.add(loop.time(), loop.time() - due)
            following = loop.time() + INTERVAL
            self._alarm = loop.call_at(following, ring, following)

        first = loop.time() + INTERVAL
        self._alarm = loop.call_at(first, ring, first)

    def stop(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

    def p99(self) -> float | None:
        """Seconds, over the last minute; None before the first sample."""
        if self._now is None:
            return None
        recent = self._samples.over(self._now() - WINDOW)
        return recent.p99 if recent.count else None
