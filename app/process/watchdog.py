"""Watchdog: ends a process that does not end by itself after a signal."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from widgets.harmless import harmless

# Together 10 s from the signal on. The interface gives replies 3 s to end, and then saves them; an
# engine that takes longer has nothing left to save.
PATIENCE_SECONDS = 8.0
SAVE_SECONDS = 2.0

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP
_last_calls: list[Callable[[], object]] = []


@contextmanager
def last_call(call: Callable[[], object]) -> Iterator[None]:
    """Register, for a block, a call that a watchdog makes before it ends the process. It runs on
    its own thread: the hanging thread still hangs, and may hold a lock that the call needs."""
    _last_calls.append(call)
    try:
        yield
    finally:
        _last_calls.remove(call)


class Watchdog:
    """Waits for signals on its own thread, beside the existing handlers: those run in the main
    thread, which may hang in a call, or whose event loop may be stuck.

    A context manager for the main thread. Each signal must have a handler in Python. A thread that
    computes in C without releasing the interpreter stops this one, too.

    Args:
        signals: how many signals it takes to end the process: the time limit starts with the last
            of them.
        report: called with a sentence that says that it hung; returns the line for standard error.
        leave: ends the process with a code.
    """

    def __init__(
        self,
        report: Callable[[str], str],
        signals: int = 1,
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        self._report = report
        self._signals = signals
        self._leave = leave
        self._closed = threading.Event()
        self._receiver, self._sender = socket.socketpair()
        # Python writes the number of a signal at once, whatever the main thread does.
        self._sender.setblocking(False)
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._before = -1

    def __enter__(self) -> Self:
        self._before = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        signal.set_wakeup_fd(self._before)
        self._closed.set()
        self._sender.close()
        self._thread.join()
        self._receiver.close()

    def _watch(self) -> None:
        ends = {getattr(signal, name) for name in _NAMES if hasattr(signal, name)}
        num_asked = 0
        while num_asked < self._signals:
            if not (data := self._receiver.recv(1)):
                return
            num_asked += data[0] in ends
        if not self._closed.wait(PATIENCE_SECONDS):
            self._end(signal.Signals(data[0]))

    def _end(self, asked: signal.Signals) -> None:
        try:
            calls = [threading.Thread(target=call, daemon=True) for call in _last_calls]
            calls.append(threading.Thread(target=self._write_report, args=(asked,), daemon=True))
            for call in calls:
                call.start()
            for call in calls:
                call.join(SAVE_SECONDS / len(calls))
        finally:
            self._leave(128 + asked)

    def _write_report(self, asked: signal.Signals) -> None:
        line = self._report(f"it did not end within {PATIENCE_SECONDS:g} s of {asked.name}")
        # Bypass `sys.stderr`, which may be one of the interface's, and its lock.
        os.write(2, f"tui: {harmless(line)}\n".encode())
