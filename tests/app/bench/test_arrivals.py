from __future__ import annotations

import math
from itertools import islice

import numpy as np
import pytest

from app.bench.scripts import arrivals


def gaps(rate: float, burstiness: float, count: int = 20_000) -> np.ndarray:
    moments = list(islice(arrivals(rate, burstiness, np.random.default_rng(0)), count))
    assert moments == sorted(moments)
    return np.diff([0.0, *moments])


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_mean_of_the_rate_and_the_variance_of_the_burstiness(
    burstiness: float,
) -> None:
    drawn = gaps(8.0, burstiness)
    assert drawn.mean() == pytest.approx(1 / 8, rel=0.05)
    # A gamma distribution of shape k has a coefficient of variation of 1 / sqrt(k).
    assert drawn.std() / drawn.mean() == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_burstiness_1_is_a_poisson_process() -> None:
    drawn = np.sort(gaps(2.0, 1.0))
    reached = np.arange(1, len(drawn) + 1) / len(drawn)
    distance = abs(reached - (1 - np.exp(-2.0 * drawn))).max()
    assert distance < 1.63 / math.sqrt(len(drawn))  # Kolmogorov-Smirnov, 1 %


def test_infinite_burstiness_is_a_clock_and_an_infinite_rate_is_a_burst() -> None:
    assert gaps(4.0, math.inf, 5).tolist() == [0.25] * 5
    assert gaps(math.inf, 1.0, 5).tolist() == [0.0] * 5
