"""Look: what the program that `benchmarks.screen` measures says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.api.status import EnginePhase


@dataclass(frozen=True, slots=True)
class Look:
    """The program at a moment.

    Attributes:
        time: monotonic seconds, the clock of the step records.
        phase: the phase of the engine.
        step: number of the last step.
        running: how many requests were in that step.
        threads: CPU seconds of each thread that Python knows.
        process: CPU seconds of all threads.
        memory: bytes of the process in memory.
        lags: seconds that the event loop was late, for each moment of a grid (`LoopProbe`) since
            the last look; none without an interface.
    """

    time: float
    phase: EnginePhase
    step: int
    running: int
    threads: Mapping[str, float]
    process: float
    memory: int = 0
    lags: tuple[float, ...] = ()
