"""ThreadedGateway: the interface to start and stop a gateway that has its own thread."""

from __future__ import annotations

from abc import ABC, abstractmethod

from app.gateway.loop_thread import LoopThread


class ThreadedGateway(ABC):
    """Runs on `_thread`, which a subclass creates."""

    _thread: LoopThread

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def begin_stop(self, drain_seconds: float | None = None) -> None:
        """Refuse new requests, let running ones end, cancel the rest, and exit; returns at once.

        Args:
            drain_seconds: how long requests may still run; None uses the setting. A second call may
                shorten it.
        """
        self._thread.call(self._close, drain_seconds)

    def stop(self, drain_seconds: float | None = None) -> None:
        """As `begin_stop`, and wait until it has ended; after `start` only."""
        self.begin_stop(drain_seconds)
        # Not by joining first: if a signal raises during that, Python 3.11 considers the thread
        # ended.
        self._thread.wait_ended()
        self._thread.join()

    def wait_ended(self, timeout: float | None = None) -> bool:
        """Whether it has ended, by itself or by `stop`; blocks until then or for `timeout` s."""
        return self._thread.wait_ended(timeout)

    @abstractmethod
    def _close(self, drain_seconds: float | None) -> None:
        """Begin to stop; called on the loop."""
