"""heap: how often the collector of cycles walks what lives as long as a model or a program."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# So many collections of the middle generation come before a full one; Python's own number is 10.
# While 64 replies streamed, that was a full one every 2 s. Each took 40 to 100 ms, in which no
# thread runs, for the telemetry of a minute is 100,000 objects without a cycle among them. With 200
# it is one in 45 s. Until then its garbage stays: the interface leaves 2,600 objects a second in
# cycles, 120,000 by then. Nine in ten are strips with their caches, for in Textual 8.2 the caches
# of `Strip.divide` and `Strip.crop_extend` hold the strip itself.
MIDDLE_BEFORE_FULL = 200
USUAL_BEFORE_FULL = gc.get_threshold()[2]


@contextmanager
def building() -> Iterator[None]:
    """Make what stays until the program ends, such as imported modules. Nothing is collected
    meanwhile, and no collection walks it afterwards.

    Imports make many objects and hardly any garbage, and so the collector walks all of them again
    and again. Torch and transformers alone have 600,000: each full walk took 0.1 to 0.4 s, in which
    no thread ran, and the screen stood still.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def settle() -> None:
    """Take it that most of what there is stays until `unsettle`: full collections become rare."""
    gc.collect()
    _collect_fully_after(MIDDLE_BEFORE_FULL)


def unsettle() -> None:
    """Have full collections come as often as usual, since much of what there is is garbage now."""
    _collect_fully_after(USUAL_BEFORE_FULL)


def _collect_fully_after(number: int) -> None:
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, number)
