"""Cadence: how often the screen looks at the engine, and what it may take of the cores for that."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

# On a machine whose cores compute the model too, what the screen takes is taken from the step.
SHARED_CORES = 2.0
UNSEEN = 4.0
# Of those cores, what the thread of the interface may take while a step is computed, and how much
# slower it goes for that at most: streams come twice a second then.
SHARE = 0.03
MOST = 2.5
# The share is measured over so many seconds, because a repaint is a burst.
MEASURED_SECONDS = 1.0
# Nothing is stretched for so long after a key: who presses one looks for what comes of it.
ATTENDED_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """Seconds between two looks.

    Attributes:
        awaited: while the session on view has asked and no text has come.
        stream: while any reply is being made. idle: while none is.
        engine: the batch, the KV map and the figures on top. table: sessions, knobs, latencies.
        devices: CPU, GPU and memory.
    """

    awaited: float = 0.03
    stream: float = 0.1
    idle: float = 0.25
    engine: float = 0.2
    table: float = 0.5
    devices: float = 1.0

    @staticmethod
    def fit(*, on_cpu: bool, seen: bool, stretch: float = 1.0) -> Cadence:
        """The cadence where the engine computes `on_cpu`, and while the terminal is `seen`.

        Args:
            stretch: how many times slower still, as `Thrift` has it; but for what is awaited, which
                is the answer to a key.
        """
        usual = Cadence()
        cores, looks = SHARED_CORES if on_cpu else 1.0, 1.0 if seen else UNSEEN
        factor = cores * max(looks, stretch)
        return Cadence(
            awaited=usual.awaited * cores * looks,
            stream=usual.stream * factor,
            idle=usual.idle * factor,
            engine=usual.engine * factor,
            table=usual.table * factor,
            devices=usual.devices * factor,
        )


class Thrift:
    """Keeps the thread of the interface below `SHARE` of the cores while the engine needs them.

    What the thread takes is nearly all for looks and the repaints after them, and so in inverse
    proportion to the time between them: from the share that it took follows the stretch it needs.

    Args:
        cores: that the program may use.
        clock: monotonic seconds.
        spent: seconds of processor time of the calling thread.
    """

    def __init__(
        self,
        cores: int,
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        self._cores = cores
        self._clock = clock
        self._spent = spent
        self._stretch = 1.0
        self._since: tuple[float, float] | None = None
        self._attended_until = -math.inf

    @property
    def stretch(self) -> float:
        """How many times longer than usual the time between two looks is to be, 1 to `MOST`."""
        return 1.0 if self._is_attended else self._stretch

    def attend(self) -> None:
        """A key was pressed."""
        self._attended_until = self._clock() + ATTENDED_SECONDS

    def measure(self, *, computing: bool) -> None:
        """To be called at every look, on the thread of the interface.

        Args:
            computing: whether the engine needs the cores; where it does not, nothing is stretched.
        """
        if not computing:
            self._stretch = 1.0
        if not computing or self._is_attended:
            self._since = None
            return
        now, spent = self._clock(), self._spent()
        if self._since is not None and now - self._since[0] < MEASURED_SECONDS:
            return
        if self._since is not None:
            share = (spent - self._since[1]) / (now - self._since[0]) / self._cores
            self._stretch = min(max(self._stretch * share / SHARE, 1.0), MOST)
        self._since = now, spent

    @property
    def _is_attended(self) -> bool:
        return self._clock() < self._attended_until
