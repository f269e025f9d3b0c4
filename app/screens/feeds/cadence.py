"""Cadence: how often the screen polls the engine, how much processor time that may take, and the
lag of the event loop."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from engine.api.telemetry import Samples

# The factor by which pauses are longer if the model runs on the same cores, because there the
# screen takes processor time from the step.
SHARED_CORES = 2.0
# The same factor if the user wants the screen to take less time.
FRUGAL = 2.0
# The same factor while the terminal does not have the focus.
UNSEEN = 4.0
# The same factor for figures while nothing is computed: only their ages change.
QUIET = 2.0
# The share of the cores that the interface's thread may take while the model runs on them, and the
# largest factor for the pauses to achieve that. At that factor, streams are shown twice a second.
SHARE = 0.03
MOST = 2.5
# The share is measured over this many seconds, because repaints come in bursts.
MEASURED_SECONDS = 1.0
# For this long after a key, nothing is slowed down, because the user waits to see its effect.
ATTENDED_SECONDS = 1.0
# Seconds between two samples of the lag, and seconds of the window over which it is measured.
INTERVAL = 0.25
WINDOW = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """Seconds between two polls of the engine and of other sources.

    Attributes:
        awaited: of the sessions, while the one on view waits for the first text of a reply.
        stream: of the sessions, while any reply is running.
        idle: of the sessions, while no reply is running.
        engine: of the engine's steps, for the batch and the KV map.
        table: of the engine's figures, for the strip on top, sessions, knobs and latencies, and of
            the MQTT gateway. They are shown together with the steps of the same poll, and at once
            when a request arrived, ended or resumed.
        devices: of CPU, GPU and memory.
    """

    awaited: float = 0.03
    stream: float = 0.1
    idle: float = 0.25
    engine: float = 0.2
    table: float = 0.5
    devices: float = 1.0

    @staticmethod
    def fit(
        *,
        on_cpu: bool,
        seen: bool,
        stretch: float = 1.0,
        frugal: bool = False,
        quiet: bool = False,
    ) -> Cadence:
        """The cadence that fits.

        Args:
            on_cpu: whether the engine computes on the cores that this program runs on.
            seen: whether the terminal has the focus.
            stretch: the factor by which the pauses are longer (`Thrift.stretch`). `awaited` is not
                stretched, because it follows a key press, and neither is `table`: it is already
                long, and figures would be seconds older than the chart beside them.
            frugal: whether the user wants fewer polls.
            quiet: whether nothing is computed, and no key was pressed just now.
        """
        usual = Cadence()
        cores, looks = SHARED_CORES if on_cpu else 1.0, 1.0 if seen else UNSEEN
        frugally = FRUGAL if frugal else 1.0
        factor = cores * max(looks, stretch) * frugally
        figures = QUIET if quiet else 1.0
        return Cadence(
            awaited=usual.awaited * cores * looks,
            stream=usual.stream * factor,
            idle=usual.idle * factor,
            engine=usual.engine * factor,
            table=usual.table * cores * looks * frugally * figures,
            devices=usual.devices * factor * figures,
        )


class Thrift:
    """Keeps the thread of the interface below `SHARE` of the cores while the engine needs them.

    The thread spends nearly all of its time on polls and on the repaints after them. So its share
    is inversely proportional to the time between two polls, and the measured share gives the factor
    by which that time has to grow.

    Args:
        cores: how many cores the program may use.
        clock: monotonic seconds.
        spent: seconds of processor time that the calling thread has used.
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
        """The factor for the time between two polls, from 1 to `MOST`."""
        return 1.0 if self.is_attended else self._stretch

    def attend(self) -> None:
        """Record that a key was pressed."""
        self._attended_until = self._clock() + ATTENDED_SECONDS

    def measure(self, *, computing: bool) -> None:
        """Measure the thread's share of the cores. This is called at every poll, on the interface's
        thread.

        Args:
            computing: whether the engine needs the cores. If it does not, nothing is stretched.
        """
        if not computing:
            self._stretch = 1.0
        if not computing or self.is_attended:
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
    def is_attended(self) -> bool:
        """Whether a key was pressed just now."""
        return self._clock() < self._attended_until


class LoopLag:
    """Samples the lag of the event loop: sets a timer repeatedly and measures how late it fires.

    It takes four samples a second, 240 in the window, which costs under 0.1 % of a core.
    """

    def __init__(self) -> None:
        self._samples = Samples(capacity=int(WINDOW / INTERVAL))
        self._alarm: asyncio.TimerHandle | None = None
        self._now: Callable[[], float] | None = None

    def start(self) -> None:
        """Begin to measure the loop in which this is called."""
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
        """The 99th percentile of the lag over the last minute, in seconds; None before the first
        sample."""
        if self._now is None:
            return None
        recent = self._samples.over(self._now() - WINDOW)
        return recent.p99 if recent.count else None
