"""lock: how soon a thread that waits is given the interpreter's lock."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Python lets a thread compute for 5 ms before it has to hand the lock to one that waits. That is
# longer than a device takes for a step: it would have run dry when the engine's thread goes on. At
# 0.2 ms that thread has the lock in time. What the switches cost grows as the interval shrinks.
SWITCH_SECONDS = 0.0002


@contextmanager
def prompt_switches(device: str | None = None) -> Iterator[None]:
    """Have threads hand the lock over soon, while a model is loaded or a device computes it.

    Where it computes on the processor the interval stays as it is. There the engine's thread waits
    once for a step of many milliseconds, and each switch takes time from the step. Imports and
    loaders hold the lock whenever nobody takes it, and a key waits for it several times.

    Args:
        device: where the model computes, as torch names it; None while it is loaded.
    """
    before = sys.getswitchinterval()
    if device != "cpu":
        sys.setswitchinterval(min(SWITCH_SECONDS, before))
    try:
        yield
    finally:
        sys.setswitchinterval(before)
