"""heap: how often the garbage collector walks objects that live as long as a model or the
program."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# The number of collections of the middle generation before a full one; Python's default is 10.
# While 64 replies streamed, that was a full one every 2 s. Each took 40 to 100 ms, in which no
# thread runs, because the telemetry of a minute is 100,000 objects without a cycle among them. With
# 200, there is one in 45 s. Garbage stays until then: the interface leaves 2,600 objects a second
# in cycles, 120,000 by then. Nine in ten are strips with their caches, because in Textual 8.2 the
# caches of `Strip.divide` and `Strip.crop_extend` hold the strip itself.
MIDDLE_BEFORE_FULL = 200
USUAL_BEFORE_FULL = gc.get_threshold()[2]


@contextmanager
def building() -> Iterator[None]:
    """Create objects that live until the program ends, such as imported modules. The collector is
    off meanwhile, and later collections skip these objects.

    Imports make many objects and hardly any garbage, and so the collector walks all of them again
    and again. Torch and transformers alone have 600,000: each full walk took 0.1 to 0.4 s, in which
    no thread ran, and the screen froze.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def settle() -> None:
    """Make full garbage collections rare until `unsettle`, because most objects are long-lived
    now."""
    gc.collect()
    _collect_fully_after(MIDDLE_BEFORE_FULL)


def unsettle() -> None:
    """Make full garbage collections as frequent as usual, because many objects are garbage now."""
    _collect_fully_after(USUAL_BEFORE_FULL)


def _collect_fully_after(number: int) -> None:
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, number)
