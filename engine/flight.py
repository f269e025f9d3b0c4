"""Flight: a step from when it is planned until its record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.cache.pool import BlockPool
from engine.knobs import Knobs
from engine.plan import PhaseTimes, Row
from engine.scheduling.scheduler import Planned
from engine.shape import StepCost
from engine.telemetry import StepRecord


@dataclass(slots=True)
class Flight:
    """A planned step, with what its record needs from before it ran.

    Attributes:
        start: engine clock when its planning began, seconds.
        plan_time: seconds that the planning took.
        knobs: those that it was planned under.
        running, waiting, waiting_reason: as the plan left them.
        handle: the runner's, for the result.
    """

    planned: Planned
    start: float
    plan_time: float
    knobs: Knobs
    running: int
    waiting: int
    waiting_reason: str
    handle: object = None

    def record(
        self,
        rows: Sequence[Row],
        times: PhaseTimes,
        cost: StepCost,
        pool: BlockPool,
        *,
        num_outputs: int,
        finished: tuple[str, ...],
        result_at: float,
        now: float,
        error: str,
    ) -> StepRecord:
        """What the step did, and what happened in the pool since the record before.

        Args:
            rows: those that were computed: none if it failed.
            cost: of these rows.
            num_outputs: tokens that requests got.
            finished: requests that ended since the record before.
            result_at: engine clock when the runner had given its result, seconds.
        """
        planned = self.planned
        prefill = [row.count for row in rows if row.prefill]
        return StepRecord(
            step=planned.plan.step,
            start=self.start,
            end=now,
            plan=self.plan_time,
            commit=now - result_at,
            times=times,
            prefill_tokens=sum(prefill),
            decode_tokens=sum(row.count for row in rows) - sum(prefill),
            padding_tokens=sum(row.count for row in planned.plan.padding if row.prefill),
            bubble_tokens=sum(row.count for row in planned.plan.padding if not row.prefill),
            prefill_rows=len(prefill),
            decode_rows=len(rows) - len(prefill),
            output_tokens=num_outputs,
            budget=planned.budget,
            policy=self.knobs.policy,
            cost=cost,
            running=self.running,
            waiting=self.waiting,
            waiting_reason=self.waiting_reason,
            preempted=tuple(request.request_id for request in planned.preempted),
            admitted=tuple(request.request_id for request in planned.admitted),
            finished=finished,
            prefix_queried_tokens=planned.prefix_queried_tokens,
            prefix_hit_tokens=planned.prefix_hit_tokens,
            blocks=pool.take_events(),
            free_blocks=pool.num_free,
            cached_blocks=pool.num_cached,
            used_blocks=pool.num_used,
            given_slots=planned.given_slots,
            unused_slots=planned.unused_slots,
            error=error,
        )
