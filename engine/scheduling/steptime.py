"""StepTime: predicts how long a step takes, from the steps measured so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# Numbers of tokens from which step time may grow more steeply, as arithmetic overtakes the reading
# of weights. This happens at 175 tokens for OPT-13B on an A100, at 258 for Llama-8B on an H100, and
# at 353 for Qwen-0.5B on an L4.
_KNOTS = (128, 256, 512)
_READY_STEPS = 8
_FORGETTING = 1 / 256
# Residuals above this many times the usual one count less (Huber's weight).
_TUNING = 3.0
_PASSES = 2
_FIRST_SCALE = 0.1
# The usual residual is never less than this. Otherwise a run of exactly predicted steps would make
# every other step an outlier.
_LEAST_SCALE = 0.01
# A prediction is never less than this share of the measurement, so that the weight of a step is
# finite.
_LEAST_SHARE = 1e-3
_SCALE_RATE = 1 / 8
# Weight of the given byte time, relative to 1 for a step that only moved bytes.
_PULL = 0.01


class Work(NamedTuple):
    """Size of a step.

    Attributes:
        tokens: how many are computed.
        rows: how many sequences they belong to.
        read: context tokens that its decodes read.
        attended: (query, key) pairs of its prompts.
        moved: bytes copied between the device and host memory.
    """

    tokens: int = 0
    rows: int = 0
    read: int = 0
    attended: int = 0
    moved: int = 0

    @staticmethod
    def of_decodes(positions: Sequence[int]) -> Work:
        """The work of a step that decodes one token at each of these positions."""
        count = len(positions)
        return Work(count, count, sum(positions) + count)

    def prefill(self, start: int, count: int) -> Work:
        """This work plus one more prompt, of which tokens [start, start + count) are computed."""
        tokens, rows, read, attended, moved = self
        pairs = count * (2 * start + count + 1) // 2
        return Work(tokens + count, rows + 1, read, attended + pairs, moved)


class StepTime:
    """Seconds of a step as a linear function of its work, with non-negative coefficients:

        t = a0 + a1 n + sum_k a_k max(n - knot_k, 0) + b rows + c read + d attended + e moved

    n is the number of tokens. The function is convex in n, as a roofline is, so that it continues
    with the last slope seen. The coefficients minimise the exponentially weighted sum of squared
    relative errors. They come from normal equations that are kept over the steps and solved by
    coordinate descent. The descent starts from the previous coefficients, so it leaves those
    unchanged that recent steps say nothing about. Two guards:

    - An outlier of relative residual r weighs min(1, 3 s / |r|), where s is the usual |r| (Huber,
      "Robust Estimation of a Location Parameter", 1964).
    - The past is forgotten at the rate 1/256 + s^2 a step. This is slow while predictions hold, and
      takes a few steps when the machine has changed.

    Few steps move bytes, and none do while moving seems slow. So `e` is drawn to its start value
    once such steps are forgotten, and one that took long by chance does not count for ever.

    Args:
        byte_seconds: start value of `e`, seconds for each byte moved.

    Attributes:
        steps: number of steps learned from.
        largest: tokens of the largest step learned from.
    """

    def __init__(self, byte_seconds: float = 0.0) -> None:
        size = 6 + len(_KNOTS)
        self.steps = 0
        self.largest = 0
        self._normal = [[0.0] * size for _ in range(size)]
        self._target = [0.0] * size
        self._start = [0.0] * (size - 1) + [byte_seconds]
        self._pulls = [0.0] * (size - 1) + [_PULL / byte_seconds**2 if byte_seconds else 0.0]
        self._coefficients = list(self._start)
        self._scale = _FIRST_SCALE

    @property
    def ready(self) -> bool:
        """Whether enough steps were measured for predictions."""
        return self.steps >= _READY_STEPS

    def seconds(self, work: Work) -> float:
        """Expected duration; 0 before any step was measured."""
        tokens, rows, read, attended, moved = work
        base, slope, bend1, bend2, bend3, row, reading, pair, byte = self._coefficients
        seconds = base + slope * tokens + row * rows + reading * read + pair * attended
        seconds += byte * moved
        knot1, knot2, knot3 = _KNOTS
        if tokens > knot1:
            seconds += bend1 * (tokens - knot1)
            if tokens > knot2:
                seconds += bend2 * (tokens - knot2)
                if tokens > knot3:
                    seconds += bend3 * (tokens - knot3)
        return seconds

    def fit(self, work: Work, start: int, most: int, seconds: float) -> int:
        """The most tokens of a prompt that end within `seconds` when computed beside `work`.

        They are counted from token `start` of the prompt, and are at most `most`.
        """
        if self.seconds(work.prefill(start, most)) <= seconds:
            return most
        low, high = 0, most
        while high - low > 1:
            middle = (low + high) // 2
            if self.seconds(work.prefill(start, middle)) <= seconds:
                low = middle
            else:
                high = middle
        return low

    def learn(self, work: Work, seconds: float) -> None:
        """Learn from a measured step."""
        if not (seconds > 0 and work.tokens):
            return
        weight = 1 / seconds**2
        if self.ready:
            expected = max(self.seconds(work), _LEAST_SHARE * seconds)
            residual = abs(seconds / expected - 1)
            # Errors relative to the measurement instead of the prediction would favour short steps.
            weight = min(1.0, _TUNING * self._scale / max(residual, 1e-9)) / expected**2
            self._scale += _SCALE_RATE * (min(residual, 1.0) - self._scale)
            self._scale = max(self._scale, _LEAST_SCALE)
        self._add(work, seconds, weight)
        for _ in range(_PASSES):
            self._descend()
        self.steps += 1
        self.largest = max(self.largest, work.tokens)

    def _add(self, work: Work, seconds: float, weight: float) -> None:
        bends = (max(work.tokens - knot, 0) for knot in _KNOTS)
        features = [1.0, work.tokens, *bends, *work[1:]]
        kept = max(0.0, 1 - _FORGETTING - self._scale**2) if self.ready else 1.0
        for i, feature in enumerate(features):
            amount = weight * feature
            row = self._normal[i]
            self._normal[i] = [
                kept * old + amount * other for old, other in zip(row, features, strict=True)
            ]
            self._target[i] = kept * self._target[i] + amount * seconds

    def _descend(self) -> None:
        """One pass of non-negative coordinate descent."""
        coefficients = self._coefficients
        for i, (row, pull) in enumerate(zip(self._normal, self._pulls, strict=True)):
            curvature = row[i] + pull
            if curvature > 0:
                slope = self._target[i] - sum(
                    [entry * value for entry, value in zip(row, coefficients, strict=True)]
                )
                slope += pull * (self._start[i] - coefficients[i])
                coefficients[i] = max(0.0, coefficients[i] + slope / curvature)
