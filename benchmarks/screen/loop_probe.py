"""LoopProbe: how late an event loop would have been for each moment of a grid."""

from __future__ import annotations

import asyncio
from collections import deque

# 50 samples a second take 0.1 % of a core.
GRID_SECONDS = 0.02


class LoopProbe:
    """Sets an alarm for each moment of a grid, and notes how late it rings.

    A loop that was held up missed many moments, and each of them counts: an alarm that is set anew
    only once it has rung would count the longest stops once.
    """

    def __init__(self) -> None:
        self._lags: deque[float] = deque()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to probe this loop, once it runs."""

        def ring(due: float) -> None:
            now = loop.time()
            while due <= now:
                self._lags.append(now - due)
                due += GRID_SECONDS
            loop.call_at(due, ring, due)

        def begin() -> None:
            ring(loop.time() + GRID_SECONDS)

        loop.call_soon(begin)

    def take(self) -> tuple[float, ...]:
        """The seconds that it was late, since the last call. From any thread."""
        return tuple(self._lags.popleft() for _ in range(len(self._lags)))


class ProbedLoops(asyncio.DefaultEventLoopPolicy):
    """Makes loops that are probed: the application makes its own, and takes none."""

    def __init__(self, probe: LoopProbe) -> None:
        super().__init__()
        self._probe = probe

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        loop = super().new_event_loop()
        self._probe.start(loop)
        return loop
