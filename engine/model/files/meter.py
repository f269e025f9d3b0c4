"""Meter: counts bytes for a `Progress`, from any thread."""

from __future__ import annotations

import threading

from engine.serving.loading import Progress


class Meter:
    """Reports rising byte counts to a `Progress`, one call at a time.

    Args:
        detail: the work, for people.
        total: total bytes.

    Attributes:
        detail: may change during the work.
        interrupted: whether `progress` raised, which ends the metered work.
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
        """Count processed bytes, up to the total."""
        with self._lock:
            self._done = min(self._done + count, self._total)
            try:
                self._progress(self.detail, self._done, self._total)
            except BaseException:
                self.interrupted = True
                raise

    def finish(self) -> None:
        """Count the rest, which turned out to be unnecessary."""
        if self._done < self._total:
            self.add(self._total)
