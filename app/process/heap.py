"""heap: how often the collector of cycles walks what lives as long as a model."""

from __future__ import annotations

import gc

# So many collections of the middle generation come before a full one; Python's own number is 10.
# While 64 replies streamed, that was a full one every 2 s. Each took 40 to 100 ms, in which no
# thread runs, for the telemetry of a minute is 100,000 objects without a cycle among them. With 200
# it is one in 45 s. Until then its garbage stays: the interface leaves 2,600 objects a second in
# cycles, 120,000 by then.
MIDDLE_BEFORE_FULL = 200
USUAL_BEFORE_FULL = gc.get_threshold()[2]


def settle() -> None:
    """Take it that all there is will stay: no collection walks it until `unsettle`. Without this a
    full one takes 0.2 s, for torch and transformers alone have 370,000 objects.
    """
    gc.collect()
    gc.freeze()
    _collect_fully_after(MIDDLE_BEFORE_FULL)


def unsettle() -> None:
    """Have full collections walk everything, as often as usual, since much of it is garbage now."""
    gc.unfreeze()
    _collect_fully_after(USUAL_BEFORE_FULL)


def _collect_fully_after(number: int) -> None:
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, number)
