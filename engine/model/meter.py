"""Meter: counts bytes for a `Progress`, from any thread."""

from __future__ import annotations

import threading

from engine.serving.loading import Progress


class Meter:
    """Tells a `Progress` of rising byte counts, one call at a time.

    Args:
        detail: what is done, for people.
        total: bytes to be done.

    Attributes:
        detail: may be changed as the work goes on.
        interrupted: whether `progress` raised, which ends the work that is metered.
    """

    def __init__(self, detail: str, total: int, progress: Progress) -> None:
        self.interrupted = False
        self.detail = detail
        self._total = total
        self._progress = progress
        self._done = 0
        self._lock = threading.Lock()
        self.add(0)

    def add(self, count: int) -> None:
        """Count bytes that are done, up to the total."""
        with self._lock:
            self._done = min(self._done + count, self._total)
            try:
                self._progress(self.detail, self._done, self._total)
            except BaseException:
                self.interrupted = True
                raise

    def finish(self) -> None:
        """Count the rest, which turned out not to be needed."""
        if self._done < self._total:
            self.add(self._total)
