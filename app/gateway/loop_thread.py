"""LoopThread: a thread with its own event loop, and ThreadedGateway, which runs on one."""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from typing import Any

log = logging.getLogger(__name__)


class LoopThread(threading.Thread):
    """Runs one coroutine to its end. The first failure of a callback, or of a task of `guard`, sets
    `failed`, so that the coroutine can end. Remaining tasks are then cancelled.

    Args:
        what: the name of its work, for the log.
        serve: the coroutine.
        at_the_end: called one after the other when it has ended, even if one of them raises.

    Attributes:
        failed: set once anything has failed; awaited on the loop.
        crash: the first failure; empty if there is none.
    """

    def __init__(
        self,
        name: str,
        what: str,
        serve: Callable[[], Coroutine[Any, Any, None]],
        at_the_end: Sequence[Callable[[], None]],
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.loop = asyncio.new_event_loop()
        self.failed = asyncio.Event()
        self.crash = ""
        self._what = what
        self._serve = serve
        self._at_the_end = at_the_end
        self._ended = threading.Event()

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def wait_ended(self, timeout: float | None = None) -> bool:
        """Whether the thread's work is over; blocks until then or for `timeout` s."""
        return self._ended.wait(timeout)

    def call(self, call: Callable[..., object], *args: object) -> None:
        """Call a function on the loop, unless that has ended; from any thread."""
        try:
            self.loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            log.debug("%s has ended", self._what)

    def run(self) -> None:
        with ExitStack() as at_the_end:
            # In any case, even if the others raise: the caller of `wait_ended` waits for this.
            at_the_end.callback(self._ended.set)
            at_the_end.callback(self.loop.close)
            for call in reversed(self._at_the_end):
                at_the_end.callback(call)
            at_the_end.callback(self._cancel_left)
            self.loop.set_exception_handler(self._fail)
            serving = self.loop.create_task(self._serve())
            try:
                self.loop.run_until_complete(serving)
            except BaseException as error:
                # `crash` reports it to waiters; a thread cannot raise it to a caller.
                self._blame(error)
                if not serving.done():  # asyncio lets SystemExit and its like through
                    self.loop.run_until_complete(serving)

    def _cancel_left(self) -> None:
        """Cancel the tasks that outlive the coroutine, and run them to their end: each releases its
        resources while these still exist, and none is dropped before its first step."""
        while left := asyncio.all_tasks(self.loop):
            for task in left:
                task.cancel()
            try:
                self.loop.run_until_complete(asyncio.wait(left))
            except BaseException as error:  # asyncio lets SystemExit past the other tasks
                self._blame(error)

    async def guard(self, task: Coroutine[Any, Any, None]) -> None:
        """Run a task whose failure ends the thread, whatever kind of exception it is."""
        try:
            await task
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._blame(error)

    def _fail(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the thread after a callback raised: its work stays undone, and no caller would see
        that."""
        if "handle" not in context:
            loop.default_exception_handler(context)
            return
        self._blame(context["exception"])

    def _blame(self, error: BaseException) -> None:
        """Record a failure; first in `crash`, because logging may fail too."""
        self.crash = self.crash or f"{type(error).__name__}: {error}"
        self.failed.set()
        log.error("%s failed", self._what, exc_info=error)


async def pause(event: asyncio.Event, seconds: float) -> None:
    """Return when an event is set, or after so many seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class ThreadedGateway(ABC):
    """Runs on `_thread`, which a subclass creates."""

    _thread: LoopThread

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def request_stop(self, drain_seconds: float | None = None) -> None:
        """Refuse new requests, let running ones end, cancel the rest, and exit; returns at once.

        Args:
            drain_seconds: how long requests may still run; None uses the setting. A second call may
                shorten it.
        """
        self._thread.call(self._close, drain_seconds)

    def stop(self, drain_seconds: float | None = None) -> None:
        """As `request_stop`, and wait until it has ended; after `start` only."""
        self.request_stop(drain_seconds)
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
