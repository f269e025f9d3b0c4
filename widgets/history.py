"""History: the last values of one quantity, as a sparkline."""

from __future__ import annotations

import math
from collections import deque

CAPACITY = 120


class History:
    """At most `CAPACITY` values, newest last."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=CAPACITY)

    def add(self, value: float | None) -> None:
        """Append a value; None and NaN leave a gap."""
        self._values.append(math.nan if value is None else value)

    def sparkline(self, ramp: str, width: int) -> str:
        """The newest values in exactly `width` cells, scaled from 0 to their maximum."""
        values = list(self._values)[-width:] if width > 0 else []
        top = max((v for v in values if math.isfinite(v)), default=0.0)
        return "".join(_cell(v, top, ramp) for v in values).rjust(width)


def _cell(value: float, top: float, ramp: str) -> str:
    if not math.isfinite(value):
        return " "
    level = value / top * (len(ramp) - 1) if top > 0 else 0
    return ramp[max(0, round(level))]
