"""Timed: what some work takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Seconds that some work takes, and what it gives."""
    started = time.perf_counter()
    made = work()
    return time.perf_counter() - started, made
