"""Cadence: how often the screen looks at the engine."""

from __future__ import annotations

from dataclasses import dataclass

# On a machine whose cores compute the model too, what the screen takes is taken from the step.
SHARED_CORES = 2.0
UNSEEN = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """Seconds between two looks.

    Attributes:
        awaited: while the session on view has asked and no text has come.
        stream: while any reply is being made. idle: while none is.
        engine: the batch, the KV map and the figures on top. table: sessions, knobs, latencies.
        devices: CPU, GPU and memory.
    """

    awaited: float = 0.03
    stream: float = 0.1
    idle: float = 0.25
    engine: float = 0.2
    table: float = 0.5
    devices: float = 1.0

    @staticmethod
    def fit(*, on_cpu: bool, seen: bool) -> Cadence:
        """The cadence where the engine computes `on_cpu`, and while the terminal is `seen`."""
        usual = Cadence()
        factor = (SHARED_CORES if on_cpu else 1.0) * (1.0 if seen else UNSEEN)
        return Cadence(
            awaited=usual.awaited * factor,
            stream=usual.stream * factor,
            idle=usual.idle * factor,
            engine=usual.engine * factor,
            table=usual.table * factor,
            devices=usual.devices * factor,
        )
