"""SimulatedRunner: a runner that takes virtual time instead of running a model."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from engine.api.telemetry import PhaseTimes
from engine.batch.plan import StepPlan, StepResult
from engine.simulation.clock import VirtualClock
from engine.simulation.cost import CostModel

# The only tokens that the runner samples. For the core, `EOS` ends a sequence.
EOS = 0
TOKEN = 1


@dataclass(frozen=True, slots=True)
class _Handle:
    plan: StepPlan
    seconds: float
    finished: float


class SimulatedRunner:
    """An `engine.batch.plan.RepeatingRunner` that samples `EOS` as soon as `min_tokens` allows it.

    The device computes one step after the other. A step begins when it is started, or when the
    previous step has ended. The clock advances only in `result`.

    Args:
        depth: steps that may be started before the first result is read.
    """

    def __init__(self, clock: VirtualClock, cost: CostModel, depth: int = 1) -> None:
        self._clock = clock
        self._cost = cost
        self._depth = depth
        self._free_at = 0.0
        # By sequence, the computed length from which its next token may be the last.
        self._lengths: dict[int, int] = {}

    @property
    def depth(self) -> int:
        return self._depth

    def start_step(self, plan: StepPlan) -> _Handle:
        seconds = self._cost.seconds(plan)
        self._free_at = max(self._free_at, self._clock()) + seconds
        return _Handle(plan, seconds, self._free_at)

    def result(self, handle: object) -> StepResult:
        assert isinstance(handle, _Handle)
        self._clock.sleep_until(handle.finished)
        plan, lengths = handle.plan, self._lengths
        for seq in plan.released:
            lengths.pop(seq, None)
        for new in plan.new:
            lengths[new.seq] = new.num_prompt_tokens + max(new.sampling.min_tokens, 1) - 1
        # The end is found by comparing lengths, without counting down, so that a row costs 0.1 us.
        token_ids = tuple(
            [
                EOS if row.start + row.count >= lengths[row.seq] else TOKEN
                for row in plan.rows
                if row.samples
            ]
        )
        return StepResult(token_ids, PhaseTimes(forward=handle.seconds))

    def repeat(self, plan: StepPlan, most: int, until: float) -> tuple[int, list[float]]:
        """See `RepeatingRunner.repeat`."""
        lengths = self._lengths
        left = min([lengths[row.seq] - row.start - row.count for row in plan.rows])
        now, ends = self._clock(), []
        for seconds in islice(self._cost.seconds_ahead(plan), max(min(most, left), 0)):
            now += seconds
            if now >= until:
                break
            ends.append(now)
        if ends:
            self._free_at = ends[-1]
            self._clock.sleep_until(ends[-1])
        return TOKEN, ends
