"""EngineCore: plan, run, commit. One thread, no locks, deterministic under a given clock."""

from __future__ import annotations

import contextlib
import heapq
import logging
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from engine.admission import max_output_tokens
from engine.cache.manager import KVCache
from engine.config import EngineConfig
from engine.errors import (
    DeadlineError,
    EngineError,
    ErrorInfo,
    InvalidRequestError,
    OverloadedError,
)
from engine.knobs import KnobLedger, Knobs
from engine.observer import Observer
from engine.output import End, StopFound, TokenOutput
from engine.plan import PhaseTimes, Runner, StepResult
from engine.request import (
    FinishReason,
    Origin,
    Request,
    RequestState,
    RequestTimings,
    SamplingParams,
)
from engine.scheduling.policies import POLICY_NAMES
from engine.scheduling.scheduler import Planned, Scheduler
from engine.shape import ModelShape
from engine.snapshot import ModelCard, Snapshot
from engine.stream import Timings, Usage
from engine.telemetry import Ring, StepRecord

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A submitted step, with what its record needs from before it ran."""

    planned: Planned
    handle: object
    start: float
    plan_time: float
    knobs: Knobs
    running: int
    waiting: int
    waiting_reason: str


class EngineCore:
    """A continuous-batching engine over one runner.

    Everything happens in `step`: requests, aborts and knobs that came since the last one take
    effect at its start. Nothing here sleeps, and time is only what `clock` says.

    Args:
        key: names model and dtype for the prefix cache.
        eos_token_ids: the model's end-of-sequence tokens.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        config: EngineConfig,
        runner: Runner,
        shape: ModelShape,
        card: ModelCard,
        key: str,
        eos_token_ids: frozenset[int],
        knobs: Knobs,
        clock: Callable[[], float],
    ) -> None:
        self.config = config
        self.ledger = KnobLedger(knobs, config, POLICY_NAMES)
        self._runner = runner
        self._shape = shape
        self._eos = eos_token_ids
        self._clock = clock
        self._scheduler = Scheduler(KVCache(config, key))
        self._observer = Observer(card, config)
        self._requests: dict[str, Request] = {}
        self._arrivals = 0
        self._in_flight: deque[_InFlight] = deque()
        self._outputs: list[TokenOutput] = []
        self._ended_in_step: list[str] = []
        self._deadlines: list[tuple[float, int, Request]] = []
        self._idle = True

    @property
    def records(self) -> Ring[StepRecord]:
        """Records of the last steps; any thread may read them."""
        return self._observer.records

    @property
    def num_unfinished(self) -> int:
        return len(self._requests)

    @property
    def idle(self) -> bool:
        """Whether `step` has nothing to do until a request, an abort, a knob or `next_wake`."""
        return self._idle and not self._outputs

    @property
    def next_wake(self) -> float | None:
        """Clock time at which an idle core wants a step again, if any: the next deadline."""
        while self._deadlines and not _is_queued(self._deadlines[0][2]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def submit(
        self,
        request_id: str,
        token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        origin: Origin | None = None,
        priority: int = 0,
        deadline: float | None = None,
        parent: str | None = None,
        attempt: int = 1,
        arrival: float | None = None,
    ) -> None:
        """Queue a request. A refusal comes out of the next `step` as the request's end.

        Args:
            deadline: seconds after arrival by which it must have left the queue.
            arrival: when it arrived, if earlier than now.
        """
        now = self._clock()
        arrival = now if arrival is None else arrival
        self._idle = False
        try:
            self._check_admission(request_id)
            limit = max_output_tokens(self.config, len(token_ids), sampling)
        except EngineError as error:
            self._observer.refused()
            usage = Usage(len(token_ids), 0, 0)
            timings = Timings.of(RequestTimings(arrival, finished=now), 0)
            end = End(FinishReason.ERROR, usage, timings, (), error.info())
            self._outputs.append(TokenOutput(request_id, (), end))
            return
        self._arrivals += 1
        request = Request(
            request_id=request_id,
            ordinal=self._arrivals,
            prompt_token_ids=list(token_ids),
            sampling=sampling,
            seed=secrets.randbits(64) if sampling.seed is None else sampling.seed,
            eos_token_ids=self._eos,
            max_output_tokens=limit,
            timings=RequestTimings(arrival),
            origin=origin or Origin(),
            priority=priority,
            deadline=None if deadline is None else arrival + deadline,
            parent=parent,
            attempt=attempt,
        )
        self._requests[request_id] = request
        self._scheduler.add(request)
        if request.deadline is not None:
            heapq.heappush(self._deadlines, (request.deadline, request.ordinal, request))
        self._observer.arrived(request)

    def abort(self, request_id: str) -> None:
        """End a request with reason `abort`; unknown and ended ones are ignored."""
        request = self._requests.get(request_id)
        if request is not None:
            self._end(request, FinishReason.ABORT)
            self._idle = False

    def abort_all(self) -> None:
        """End every request with reason `abort`."""
        for request_id in list(self._requests):
            self.abort(request_id)

    def stop(self, found: StopFound) -> None:
        """End a request whose text met a stop string; tokens after it are dropped."""
        request = self._requests.get(found.request_id)
        if request is not None:
            del request.output_token_ids[found.num_output_tokens :]
            self._end(request, FinishReason.STOP)
            self._idle = False

    def change_knobs(self, changes: Mapping[str, object], who: str) -> None:
        """Change knobs from the next step on; any thread may call this.

        Raises:
            InvalidConfigError: nothing was changed.
        """
        self.ledger.change(changes, who, self._clock(), self.records.total)

    def undo_knobs(self, who: str) -> None:
        """Take back the last change of knobs; any thread may call this."""
        self.ledger.undo(who, self._clock(), self.records.total)

    def step(self) -> list[TokenOutput]:
        """Plan and submit as deep as the runner takes it, then commit the oldest step.

        Returns what came out: new tokens and ends, those of refused and aborted requests included.
        """
        self._expire()
        planned_any = False
        while len(self._in_flight) < self._runner.depth and self._plan():
            planned_any = True
        if self._in_flight:
            self._commit()
        self._idle = not planned_any and not self._in_flight
        outputs, self._outputs = self._outputs, []
        return outputs

    def snapshot(self) -> Snapshot:
        return self._observer.snapshot(self._scheduler, self.ledger, self._clock())

    def check(self) -> None:
        """Verify the cache's books; for tests and soaks.

        Raises:
            AssertionError: they do not balance.
        """
        self._scheduler.check()

    def _check_admission(self, request_id: str) -> None:
        if request_id in self._requests:
            raise InvalidRequestError(
                f"request_id {request_id!r} is in use by a running request", "request_id"
            )
        queue_limit = self.ledger.knobs.queue_limit
        if len(self._scheduler.waiting) >= queue_limit:
            raise OverloadedError(
                f"the queue is full: {queue_limit} requests wait; try again later", "queue_limit"
            )

    def _expire(self) -> None:
        now = self._clock()
        while (wake := self.next_wake) is not None and wake <= now:
            request = heapq.heappop(self._deadlines)[2]
            waited = now - request.timings.arrival
            message = f"the deadline passed after {waited:.3f} s in the queue"
            self._end(request, FinishReason.ERROR, DeadlineError(message, "deadline").info())

    def _plan(self) -> bool:
        """Plan and submit one step; False when there is nothing to do."""
        start = self._clock()
        knobs = self.ledger.knobs
        planned = self._scheduler.plan(knobs)
        stranded = self._scheduler.take_stranded()
        for request in stranded:
            message = (
                f"the KV pool of {self.config.num_blocks} blocks has none left for this request, "
                f"which holds all {len(request.block_table)} that are in use"
            )
            self._end(request, FinishReason.ERROR, ErrorInfo("engine_error", message))
        if planned is None:
            return bool(stranded)
        now = self._clock()
        for request in planned.admitted:
            if request.timings.first_scheduled is None:
                self._observer.scheduled(request, now)
        try:
            handle = self._runner.submit(planned.plan)
        except Exception as error:
            self._step_failed(planned, error)
            return True
        self._in_flight.append(
            _InFlight(
                planned,
                handle,
                start,
                now - start,
                knobs,
                len(self._scheduler.running),
                len(self._scheduler.waiting),
                self._scheduler.waiting_reason,
            )
        )
        return True

    def _commit(self) -> None:
        """Wait for the oldest step and take its tokens in."""
        flight = self._in_flight.popleft()
        planned = flight.planned
        try:
            result = self._runner.result(flight.handle)
        except Exception as error:
            self._step_failed(planned, error)
            return
        now = self._clock()
        ends = self._take_tokens(planned, result, now)
        self._scheduler.end_step(planned, publish=flight.knobs.prefix_caching)
        for request, reason, error_info in ends:
            self._end(request, reason, error_info)
        self._record(flight, result.times, len(result.token_ids), now)

    def _take_tokens(
        self, planned: Planned, result: StepResult, now: float
    ) -> list[tuple[Request, FinishReason, ErrorInfo | None]]:
        """Append the sampled tokens; returns the requests that end with them."""
        ends: list[tuple[Request, FinishReason, ErrorInfo | None]] = []
        sampling = (
            request
            for request, row in zip(planned.requests, planned.plan.rows, strict=True)
            if row.samples
        )
        for request, token_id in zip(sampling, result.token_ids, strict=True):
            request.num_in_flight -= 1
            if request.finish_reason is not None:
                continue
            if token_id < 0:
                info = ErrorInfo("engine_error", "the model gave logits that are not finite")
                ends.append((request, FinishReason.ERROR, info))
                continue
            request.output_token_ids.append(token_id)
            self._observer.emitted(request, now)
            self._outputs.append(TokenOutput(request.request_id, (token_id,)))
            reason = request.ends_at(token_id)
            if reason is not None:
                ends.append((request, reason, None))
        return ends

    def _end(self, request: Request, reason: FinishReason, error: ErrorInfo | None = None) -> None:
        """The one way a request ends, from wherever it stands."""
        request.error = error
        self._scheduler.finish(request, reason)
        self._observer.ended(request, self._clock())
        self._ended_in_step.append(request.request_id)
        del self._requests[request.request_id]
        count = len(request.output_token_ids)
        end = End(
            reason,
            Usage(request.num_prompt_tokens, count, request.num_cached_tokens),
            Timings.of(request.timings, count),
            tuple(request.prompt_token_ids + request.output_token_ids),
            error,
        )
        self._outputs.append(TokenOutput(request.request_id, (), end))

    def _step_failed(self, planned: Planned, error: Exception) -> None:
        """A step raised. Prompts are the likely cause (they are what makes one step larger than the
        last): they end with the error, and decodes are recomputed. Without prompts all end, so that
        every failure ends at least one request and a broken device cannot loop.
        """
        log.error("step %d failed", planned.plan.step, exc_info=error)
        voided = [planned]
        self._scheduler.take_back(planned)
        while self._in_flight:  # Later steps were computed from what this one did not leave.
            flight = self._in_flight.popleft()
            with contextlib.suppress(Exception):
                self._runner.result(flight.handle)
            self._scheduler.take_back(flight.planned)
            voided.append(flight.planned)
        both = zip(planned.requests, planned.plan.rows, strict=True)
        rows = [(request, row) for request, row in both if request.finish_reason is None]
        blamed = [request for request, row in rows if row.prefill] or [r for r, _row in rows]
        spared = {request for void in voided for request in void.requests} - set(blamed)
        self._scheduler.preempt(
            [request for request in spared if request.state is RequestState.RUNNING],
            self.ledger.knobs,
        )
        message = f"the step that computed this request failed: {type(error).__name__}: {error}"
        for request in blamed:
            self._end(request, FinishReason.ERROR, ErrorInfo("engine_error", message))

    def _record(self, flight: _InFlight, times: PhaseTimes, num_outputs: int, end: float) -> None:
        planned, pool = flight.planned, self._scheduler.cache.pool
        rows = planned.plan.rows
        prefill = [row.count for row in rows if row.prefill]
        finished, self._ended_in_step = tuple(self._ended_in_step), []
        now = self._clock()
        self._observer.stepped(
            StepRecord(
                step=planned.plan.step,
                start=flight.start,
                end=now,
                plan=flight.plan_time,
                commit=now - end,
                times=times,
                prefill_tokens=sum(prefill),
                decode_tokens=planned.plan.num_tokens - sum(prefill),
                prefill_rows=len(prefill),
                decode_rows=len(rows) - len(prefill),
                output_tokens=num_outputs,
                budget=flight.knobs.max_num_batched_tokens,
                policy=flight.knobs.policy,
                cost=self._shape.cost(rows),
                running=flight.running,
                waiting=flight.waiting,
                waiting_reason=flight.waiting_reason,
                preempted=tuple(request.request_id for request in planned.preempted),
                admitted=tuple(request.request_id for request in planned.admitted),
                finished=finished,
                prefix_queried_tokens=planned.prefix_queried_tokens,
                prefix_hit_tokens=planned.prefix_hit_tokens,
                blocks=pool.take_events(),
                free_blocks=pool.num_free,
                cached_blocks=pool.num_cached,
                used_blocks=pool.num_used,
            )
        )


def _is_queued(request: Request) -> bool:
    return request.state is RequestState.WAITING
