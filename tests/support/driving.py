"""Driving: a scripted engine that steps by itself on a thread, and waits that have an end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.support.scripted_engine import ScriptedEngine

TIMEOUT = 10.0


class Driving:
    """The common part of serving over any gateway.

    Attributes:
        engine: the engine, whose time passes on command.
    """

    engine: ScriptedEngine

    def told(self) -> object:
        """The state shown when a wait fails."""
        return ""

    def until(self, condition: Callable[[], object], timeout: float = TIMEOUT) -> None:
        """Wait, without a step of the engine."""
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, f"not in {timeout} s: {self.told()}"
            time.sleep(0.002)

    @contextmanager
    def running(self) -> Iterator[None]:
        """The engine steps by itself, on a thread."""
        parked = threading.Event()

        def drive() -> None:
            while not parked.is_set():
                if not self.engine.advance():
                    time.sleep(0.001)

        driver = threading.Thread(target=drive, daemon=True)
        driver.start()
        try:
            yield
        finally:
            parked.set()
            driver.join()
