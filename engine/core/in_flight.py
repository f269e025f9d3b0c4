"""InFlight: a step in flight, from its planning to its record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.api.knobs import Knobs
from engine.api.telemetry import Ended, PhaseTimes, StepCost, StepRecord
from engine.api.waiting import Wait
from engine.batch.plan import Row
from engine.cache.pool import BlockPool
from engine.scheduling.planned import Planned


@dataclass(slots=True)
class InFlight:
    """A planned step, and the facts from planning time that its record needs.

    Attributes:
        start: engine clock when its planning began, seconds.
        plan_time: seconds that the planning took.
        knobs: the knobs in force at planning.
        running, waiting: numbers of requests after the planning.
        head_wait: why the head of the queue waited after the planning.
        handle: the runner's handle, for `Runner.result`.
    """

    planned: Planned
    start: float
    plan_time: float
    knobs: Knobs
    running: int
    waiting: int
    head_wait: Wait | None
    handle: object = None

    def record(
        self,
        rows: Sequence[Row],
        times: PhaseTimes,
        cost: StepCost,
        pool: BlockPool,
        *,
        model: str,
        num_outputs: int,
        finished: tuple[Ended, ...],
        begun: float,
        result_at: float,
        now: float,
        error: str,
    ) -> StepRecord:
        """Make the step's record, with the pool events since the last one.

        Args:
            rows, cost: the computed rows, none if the step failed, and their cost.
            model: name of the loaded model.
            num_outputs: tokens appended to requests.
            begun: see `StepRecord`.
            finished: requests that ended since the record before.
            result_at: engine clock when the runner returned its result, seconds.
        """
        planned = self.planned
        prefill = [row.count for row in rows if row.prefill]
        return StepRecord(
            step=planned.plan.step,
            start=self.start,
            begun=begun,
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
            model=model,
            cost=cost,
            running=self.running,
            waiting=self.waiting,
            head_wait=self.head_wait,
            preempted=tuple(request.request_id for request in planned.preempted),
            preempted_for=tuple(request.preempted_for for request in planned.preempted),
            admitted=tuple(request.request_id for request in planned.admitted),
            finished=finished,
            swapped=tuple(request.request_id for request in planned.swapped),
            restored=tuple(request.request_id for request in planned.swapped_in),
            swapped_out_blocks=len(planned.plan.swaps_out),
            swapped_in_blocks=len(planned.plan.swaps_in),
            structured_rows=0 if error else planned.num_structured,
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
