"""Arrivals: the arrival times of requests."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np


def arrivals(rate: float, burstiness: float, rng: np.random.Generator) -> Iterator[float]:
    """Yield arrival times in seconds, without end.

    Gaps are gamma-distributed with mean `1 / rate` and shape `burstiness`, as `vllm bench serve`
    defines it. Unlike there, the sum of the gaps is not rescaled.

    Args:
        rate: requests a second; if infinite, all come at once.
        burstiness: 1 is a Poisson process. Below 1 requests come in bursts, above 1 they come more
            evenly; if infinite, one comes every `1 / rate` seconds.
    """
    now = 0.0
    while True:
        if math.isinf(rate):
            gap = 0.0
        elif math.isinf(burstiness):
            gap = 1 / rate
        else:
            gap = rng.gamma(burstiness, 1 / (rate * burstiness))
        now += gap
        yield now
