"""Usage: how much processor time and memory threads and processes have taken."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

_LOOK_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds up to a moment.

    Attributes:
        time: the moment, in monotonic seconds.
        threads: CPU seconds of each thread of this process, by name, to a nanosecond.
        beside: CPU seconds of another process, to a tick of 10 ms.
    """

    time: float
    threads: dict[str, float]
    beside: float

    @classmethod
    def now(cls, beside: psutil.Process) -> Usage:
        threads = {
            thread.name: time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
            for thread in threading.enumerate()
            if thread.ident is not None
        }
        times = beside.cpu_times()
        return cls(time.monotonic(), threads, times.user + times.system)

    def __sub__(self, before: Usage) -> Usage:
        """The time since `before` of threads that existed all the while."""
        return Usage(
            self.time - before.time,
            {
                name: seconds - before.threads[name]
                for name, seconds in self.threads.items()
                if name in before.threads
            },
            self.beside - before.beside,
        )


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Resident bytes of this process: those at the start, and the most since, looked at every
    10 ms."""
    process, done = psutil.Process(), threading.Event()
    seen = [process.memory_info().rss] * 2

    def watch() -> None:
        while not done.wait(_LOOK_SECONDS):
            seen[1] = max(seen[1], process.memory_info().rss)

    watcher = threading.Thread(target=watch, name="memory")
    watcher.start()
    try:
        yield seen
    finally:
        done.set()
        watcher.join()
