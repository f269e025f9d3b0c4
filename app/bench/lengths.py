"""Lengths: distributions of prompt and output lengths in tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

FORMS = "N, uniform:LOW:HIGH or exponential:MEAN:CAP"


class LengthError(ValueError):
    """A length has the wrong form; the message says which forms are allowed."""


class Lengths(Protocol):
    """A distribution of token counts."""

    @property
    def most(self) -> int:
        """The largest count that may be drawn. Requests announce it."""
        ...

    def sample(self, rng: np.random.Generator) -> int: ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always `count` tokens."""

    count: int

    @property
    def most(self) -> int:
        return self.count

    def sample(self, rng: np.random.Generator) -> int:
        return self.count

    def __str__(self) -> str:
        return str(self.count)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Uniformly distributed counts from `low` to `high`, both included."""

    low: int
    high: int

    @property
    def most(self) -> int:
        return self.high

    def sample(self, rng: np.random.Generator) -> int:
        return int(rng.integers(self.low, self.high, endpoint=True))

    def __str__(self) -> str:
        return f"uniform:{self.low}:{self.high}"


@dataclass(frozen=True, slots=True)
class Exponential:
    """Exponentially distributed counts with the mean `mean`, rounded up and cut at `cap`.

    A count above the cap becomes the cap, as a server cuts an output at `max_tokens`. The resulting
    mean is `mean * (1 - exp(-cap / mean))`, up to rounding.
    """

    mean: float
    cap: int

    @property
    def most(self) -> int:
        return self.cap

    def sample(self, rng: np.random.Generator) -> int:
        return min(self.cap, max(1, math.ceil(rng.exponential(self.mean))))

    def __str__(self) -> str:
        return f"exponential:{self.mean:g}:{self.cap}"


def parse_lengths(text: str) -> Lengths:
    """Lengths from `N`, `uniform:LOW:HIGH` or `exponential:MEAN:CAP`.

    Raises:
        LengthError: the text has another form, or a count is below 1.
    """
    kind, *parts = text.split(":")
    try:
        if not parts:
            return Fixed(_count(kind))
        if kind == "uniform":
            low, high = map(_count, parts)
            if low <= high:
                return Uniform(low, high)
        elif kind == "exponential":
            mean, cap = parts
            if 0 < float(mean) < math.inf:
                return Exponential(float(mean), _count(cap))
    except ValueError:
        pass
    raise LengthError(f"{text!r} is not a length; it must be {FORMS}, in tokens, at least 1")


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise ValueError
    return count
