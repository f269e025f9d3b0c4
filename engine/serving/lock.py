"""lock: how soon a waiting thread gets the interpreter's lock."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Python lets a thread compute for 5 ms before it must release the lock to a waiting one. That is
# longer than a device takes for a step: the device would idle until the engine's thread gets the
# lock. At 0.2 ms that thread has the lock in time. The cost of switches grows as the interval
# shrinks.
SWITCH_SECONDS = 0.0002


@contextmanager
def prompt_switches(device: str | None = None) -> Iterator[None]:
    """Make threads release the lock sooner, while a model is loaded or a device computes.

    If the model computes on the processor, the interval is unchanged. There the engine's thread
    waits once for a step of many milliseconds, and each switch takes time from the step. Imports
    and loaders hold the lock as long as they can, and a key press waits for it several times.

    Args:
        device: the model's device, as torch names it; None while it is loaded.
    """
    before = sys.getswitchinterval()
    if device != "cpu":
        sys.setswitchinterval(min(SWITCH_SECONDS, before))
    try:
        yield
    finally:
        sys.setswitchinterval(before)
