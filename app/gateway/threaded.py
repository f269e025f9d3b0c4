"""ThreadedGateway: a gateway on a thread of its own, as those see it who start and stop it."""

from __future__ import annotations

from abc import ABC, abstractmethod

from app.gateway.loop_thread import LoopThread


class ThreadedGateway(ABC):
    """Runs on `_thread`, which a subclass makes."""

    _thread: LoopThread

    def start(self) -> None:
        """Serve."""
        self._thread.start()

    def begin_stop(self, drain_seconds: float | None = None) -> None:
        """Take nothing new, let what runs end, tell the rest, and go; returns at once.

        Args:
            drain_seconds: how long requests may still run; None is as the settings have it. A
                second call may shorten it.
        """
        self._thread.call(self._close, drain_seconds)

    def stop(self, drain_seconds: float | None = None) -> None:
        """As `begin_stop`, and wait until it is gone; after `start` only."""
        self.begin_stop(drain_seconds)
        # Not by joining first: where a signal raises in that, Python 3.11 takes the thread for
        # ended.
        self._thread.wait_ended()
        self._thread.join()

    def wait_ended(self, timeout: float | None = None) -> bool:
        """Whether it has ended, of itself or by `stop`; blocks until then or for `timeout` s."""
        return self._thread.wait_ended(timeout)

    @abstractmethod
    def _close(self, drain_seconds: float | None) -> None:
        """Begin to stop; called on the loop."""
