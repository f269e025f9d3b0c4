"""Fitted: step time fitted to the records of a real run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.api.errors import InvalidConfigError
from engine.api.telemetry import StepRecord
from engine.batch.plan import StepPlan
from engine.batch.shape import ModelShape, StepWork
from engine.simulation.cost import charged_rows
from engine.simulation.records import Recording

Array = NDArray[np.float64]

_MIN_STEPS = 50
_HELD_OUT = 5
# A range of token counts needs this many steps for a slope of its own.
_MIN_STEPS_OF_SLOPE = 10
_REWEIGHTINGS = 3


class Features(NamedTuple):
    """The inputs of step time. All are known for a plan before it runs, and for a record.

    Attributes:
        tokens, samples, attended, read: see `StepWork`.
        prefill_rows, decode_rows: numbers of sequences in prefill and in decode.
    """

    tokens: float
    samples: float
    attended: float
    read: float
    prefill_rows: float
    decode_rows: float


@dataclass(frozen=True, slots=True)
class FitError:
    """Errors of predictions for steps outside the fit.

    Attributes:
        steps: number of these steps.
        median, p90: quantiles of |measured / predicted - 1|.
    """

    steps: int
    median: float
    p90: float


class Fitted:
    """A `CostModel` that is linear in all features but the tokens, with coefficients >= 0:

        seconds = c + sum_i a_i ramp_i(tokens) + b . (samples, attended, read, rows of each phase)

    `ramp_i` is the number of tokens between two knots, which are powers of two. So the curve may
    bend either way but never falls. It can follow matrix products from memory-bound to
    compute-bound, and the jumps between a kernel's tile sizes. Beyond the last knot it continues
    with its last slope.

    Attributes:
        error: the error on every fifth step, which the fit does not use.
    """

    def __init__(
        self,
        shape: ModelShape,
        knots: Array,
        coefficients: Array,
        error: FitError,
        *,
        charge_padding: bool = False,
    ) -> None:
        self.error = error
        self._shape = shape
        self._knots = knots
        self._coefficients = coefficients
        self._charge_padding = charge_padding

    @staticmethod
    def to(recording: Recording, *, charge_padding: bool = False) -> Fitted:
        """Fit to the steps of a real run.

        This minimises the squared errors relative to the prediction, which takes several fits.
        Errors relative to the measurement would favour short steps, by twice the squared relative
        noise (8 % at a noise of 20 %).

        Raises:
            InvalidConfigError: too few steps followed another without a pause.
        """
        shape = recording.shape
        steps = busy_steps(recording.records)
        if len(steps) < _MIN_STEPS:
            raise InvalidConfigError(
                f"the records have {len(steps)} steps that followed another without a pause; a fit "
                f"needs at least {_MIN_STEPS}",
                "fit",
            )
        features = np.array([features_of_record(record, shape) for record, _ in steps], float)
        seconds = np.array([seconds for _, seconds in steps])
        held_out = np.arange(len(steps)) % _HELD_OUT == _HELD_OUT - 1
        knots = _knots(features[~held_out, 0])
        matrix = _columns(features, knots)
        shown, wanted = matrix[~held_out], seconds[~held_out]
        predicted = wanted
        for _ in range(_REWEIGHTINGS):
            coefficients = nonnegative_least_squares(shown / predicted[:, None], wanted / predicted)
            predicted = np.maximum(shown @ coefficients, 1e-3 * wanted)
        expected = matrix[held_out] @ coefficients
        off = np.abs(seconds[held_out] / expected - 1)
        error = FitError(int(held_out.sum()), float(np.median(off)), float(np.quantile(off, 0.9)))
        return Fitted(shape, knots, coefficients, error, charge_padding=charge_padding)

    def seconds(self, plan: StepPlan) -> float:
        """See `CostModel.seconds`."""
        rows = charged_rows(plan, self._charge_padding)
        prefills = sum([row.prefill for row in rows])
        return self._seconds(self._shape.work(rows), prefills, len(rows) - prefills)

    def seconds_ahead(self, plan: StepPlan) -> Iterator[float]:
        """See `CostModel.seconds_ahead`."""
        rows = charged_rows(plan, self._charge_padding)
        return (self._seconds(work, 0, len(rows)) for work in self._shape.works_ahead(rows))

    def _seconds(self, work: StepWork, prefills: int, decodes: int) -> float:
        features = Features(*work, prefills, decodes)
        return float((_columns(np.array([features], float), self._knots) @ self._coefficients)[0])


def busy_steps(records: Sequence[StepRecord]) -> list[tuple[StepRecord, float]]:
    """Steps that directly followed another, each with the seconds from that one's end to its own.

    This is the full cost of a step for a busy engine, including planning, bookkeeping and what its
    thread does between steps.
    """
    steps = []
    for before, record in pairwise(records):
        went_on = before.running > len(before.finished) and record.step == before.step + 1
        swaps = record.swapped_out_blocks or record.swapped_in_blocks  # The fit has no swaps.
        if went_on and not before.error and not record.error and not swaps:
            steps.append((record, record.end - before.end))
    return steps


def features_of_record(record: StepRecord, shape: ModelShape) -> Features:
    """Recover the features of a record, the inverse of `ModelShape.cost`."""
    width = shape.head_dim + shape.value_dim
    flops = record.cost.flops - 2 * shape.num_active_params * record.num_tokens
    flops -= 2 * shape.hidden_size * shape.vocab_size * record.output_tokens
    bytes_read = record.cost.bytes - shape.weight_bytes
    bytes_read -= shape.kv_bytes_per_token * record.num_tokens
    return Features(
        record.num_tokens,
        record.output_tokens,
        max(0.0, flops / (2 * shape.num_heads * width)),
        bytes_read / (shape.num_kv_heads * width * shape.dtype_bytes),
        record.prefill_rows,
        record.decode_rows,
    )


def nonnegative_least_squares(matrix: Array, target: Array) -> Array:
    """Find the x >= 0 that minimises |matrix x - target|.

    This is algorithm 23.10 of Lawson and Hanson, "Solving Least Squares Problems" (1974). Variables
    enter one by one, always the one whose growth helps most, and leave when they would turn
    negative.

    Args:
        matrix: [rows, columns].
        target: [rows].

    Returns:
        [columns].
    """
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    scaled = matrix / scale
    solution = np.zeros(matrix.shape[1])
    free = np.zeros(matrix.shape[1], bool)
    for _ in range(3 * matrix.shape[1]):
        gradient = scaled.T @ (target - scaled @ solution)
        gradient[free] = 0.0
        entering = int(np.argmax(gradient))
        if gradient[entering] <= 1e-10 * np.linalg.norm(target):
            break
        free[entering] = True
        while True:
            trial = np.zeros_like(solution)
            trial[free] = np.linalg.lstsq(scaled[:, free], target, rcond=None)[0]
            negative = free & (trial <= 0)
            if not negative.any():
                solution = trial
                break
            # The solution moves towards the trial until a variable would turn negative. One that
            # reaches zero leaves.
            room = solution[negative] / (solution[negative] - trial[negative])
            solution = solution + room.min() * (trial - solution)
            free &= solution > 1e-15
            solution[~free] = 0.0
    result: Array = solution / scale
    return result


def _knots(tokens: Array) -> Array:
    """Powers of two with enough steps between them to show a slope."""
    knots = [0.0]
    power = 1.0
    while power < tokens.max():
        between = np.count_nonzero((tokens > knots[-1]) & (tokens <= power))
        beyond = np.count_nonzero(tokens > power)
        if min(between, beyond) >= _MIN_STEPS_OF_SLOPE:
            knots.append(power)
        power *= 2
    return np.array(knots)


def _columns(features: Array, knots: Array) -> Array:
    """[steps, columns]: the constant, a ramp for each knot, the other features."""
    widths = np.append(np.diff(knots), np.inf)
    ramps = np.clip(features[:, :1] - knots, 0.0, widths)
    return np.hstack((np.ones((len(features), 1)), ramps, features[:, 1:]))
