"""LoadingPace: how fast a model is downloaded or read, and how long that will take."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from engine.api.status import EnginePhase, EngineStatus
from widgets.figures import lasting, size

# The pace is that of the last seconds: a hub's differs from file to file.
WINDOW_SECONDS = 10.0
LEAST_SECONDS = 1.0


class LoadingPace:
    """Adds pace and time left to the status of an engine that loads a model.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, int]] = deque()
        self._of: tuple[str, int] = ("", 0)

    def with_pace(self, status: EngineStatus) -> EngineStatus:
        """The status, its detail preceded by both where bytes are being counted."""
        of = status.model, status.total_bytes
        if of != self._of or status.phase is not EnginePhase.LOADING:
            self._samples.clear()
            self._of = of
        if status.phase is not EnginePhase.LOADING or not status.total_bytes:
            return status
        now = self._clock()
        self._samples.append((now, status.loaded_bytes))
        while len(self._samples) > 2 and self._samples[1][0] <= now - WINDOW_SECONDS:
            self._samples.popleft()
        then, before = self._samples[0]
        if now - then < LEAST_SECONDS:
            return status
        pace = (status.loaded_bytes - before) / (now - then)
        left = (status.total_bytes - status.loaded_bytes) / pace if pace > 0 else None
        detail = f"{size(pace)}/s · {lasting(left)} left · {status.detail}"
        return replace(status, detail=detail)
