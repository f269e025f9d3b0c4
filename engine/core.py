"""EngineCore: plan, run, commit. One thread, no locks, deterministic given clock and seeds."""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from engine.admission import (
    check_deadline,
    check_priority,
    check_vocabulary,
    max_output_tokens,
)
from engine.cache.manager import KVCache
from engine.config import EngineConfig
from engine.deadlines import Deadlines
from engine.errors import (
    DeadlineError,
    EngineError,
    ErrorInfo,
    InvalidRequestError,
    OverloadedError,
)
from engine.flight import Flight
from engine.knobs import Knobs
from engine.ledger import KnobLedger
from engine.observer import Observer
from engine.output import End, StopFound, TokenOutput
from engine.pins import Pins
from engine.plan import PhaseTimes, Row, Runner, StepResult
from engine.request import (
    FinishReason,
    Origin,
    Request,
    RequestState,
    RequestTimings,
    SamplingParams,
)
from engine.scheduling.policies import DEFAULT, policy_names
from engine.scheduling.scheduler import Planned, Scheduler
from engine.shape import ModelShape
from engine.snapshot import ModelCard, Snapshot
from engine.stream import Timings, Usage
from engine.telemetry import Ring, StepRecord

log = logging.getLogger(__name__)


class EngineCore:
    """A continuous-batching engine over one runner.

    Everything happens in `step`: requests, aborts and knobs that came since the last one take
    effect at its start. Nothing here sleeps, and time is only what `clock` says.

    Args:
        key: names model and dtype for the prefix cache.
        eos_token_ids: the model's end-of-sequence tokens.
        clock: monotonic seconds.

    Attributes:
        pins: prefixes that are never evicted.
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
        self.ledger = KnobLedger(knobs, config, policy_names())
        self._runner = runner
        self._shape = shape
        self._eos = eos_token_ids
        self._clock = clock
        cache = KVCache(config, key)
        self.pins = Pins(cache)
        self._scheduler = Scheduler(cache, knobs)
        self._observer = Observer(card, config)
        self._requests: dict[str, Request] = {}
        self._arrivals = 0
        self._in_flight: deque[Flight] = deque()
        self._outputs: list[TokenOutput] = []
        self._ended_in_step: list[str] = []
        self._deadlines = Deadlines()
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
    def waiting_reason(self) -> str:
        """Why the head of the queue waits, as of the last plan."""
        return self._scheduler.waiting_reason

    @property
    def next_wake(self) -> float | None:
        """Clock time at which an idle core wants a step again, if any: for the next deadline, or
        because the policy asked for it.
        """
        deadline, wake_at = self._deadlines.next, self._scheduler.wake_at
        if deadline is None or wake_at is None:
            return wake_at if deadline is None else deadline
        return min(deadline, wake_at)

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
        fork_of: str | None = None,
        arrival: float | None = None,
    ) -> None:
        """Queue a request. A refusal comes out of the next `step` as the request's end.

        Args:
            deadline: seconds after arrival by which it must have left the queue.
            fork_of: a request that, if it still runs when this one is admitted, gives it all that
                the two have in common, the last partly filled block included.
            arrival: when it arrived, if earlier than now.
        """
        now = self._clock()
        arrival = now if arrival is None else arrival
        self._idle = False
        try:
            self._check_admission(request_id)
            check_priority(priority)
            check_deadline(deadline)
            check_vocabulary(token_ids, self._shape.vocab_size)
            biased = [token_id for token_id, _ in sampling.logit_bias]
            check_vocabulary(biased, self._shape.vocab_size, "logit_bias")
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
            fork_of=self._requests.get(fork_of) if fork_of is not None else None,
        )
        self._requests[request_id] = request
        self._scheduler.add(request)
        if request.deadline is not None:
            self._deadlines.watch(request, len(self._requests))
        self._observer.arrived(request)

    def abort(self, request_id: str) -> None:
        """End a request with reason `abort`; unknown and ended ones are ignored."""
        request = self._requests.get(request_id)
        if request is not None:
            self._end(request, FinishReason.ABORT)
            self._idle = False

    def set_priority(self, request_id: str, priority: int) -> None:
        """Change a request's priority; unknown and ended ones are ignored.

        Args:
            priority: within the bounds of `engine.admission.check_priority`, which the caller sees
                to.
        """
        request = self._requests.get(request_id)
        if request is not None:
            self._scheduler.set_priority(request, priority)
            self._idle = False  # Another may be the head of the queue now, and fit.

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

    def change_knobs(self, changes: Mapping[str, object], who: str) -> Knobs:
        """Change knobs from the next step on; any thread may call this.

        Returns:
            all knobs as they are asked for now.

        Raises:
            InvalidConfigError: nothing was changed.
        """
        return self.ledger.change(changes, who, self._clock(), self._scheduler.step)

    def undo_knobs(self, who: str) -> Knobs:
        """Take back the last change of knobs; any thread may call this."""
        return self.ledger.undo(who, self._clock(), self._scheduler.step)

    def step(self) -> list[TokenOutput]:
        """Plan and submit as deep as the runner takes it, then commit the oldest step.

        Returns what came out: new tokens and ends, those of refused and aborted requests included.
        """
        self._expire()
        planned = False
        while len(self._in_flight) < self._runner.depth and self._plan():
            planned = True
        # What a commit brings, a slot or blocks, may let the next step be planned.
        self._idle = not planned and not self._in_flight
        if self._in_flight:
            self._commit()
        outputs, self._outputs = self._outputs, []
        return outputs

    def snapshot(self) -> Snapshot:
        pins = self.pins.views(prefix_caching=self.ledger.knobs.prefix_caching)
        snapshot = self._observer.snapshot(self._scheduler, self.ledger, pins, self._clock())
        stalled = bool(self._requests) and self.idle and self.next_wake is None
        return replace(snapshot, stalled=stalled)

    def check(self) -> None:
        """Verify the cache's books; for tests and soaks.

        Raises:
            AssertionError: they do not balance.
        """
        self._scheduler.check()

    def _check_admission(self, request_id: str) -> None:
        if request_id in self._requests:
            raise InvalidRequestError(
                f"request_id is {request_id!r}; a request with this id has not ended yet",
                "request_id",
            )
        queue_limit = self.ledger.knobs.queue_limit
        if len(self._scheduler.waiting) >= queue_limit:
            raise OverloadedError(
                f"the queue is full, queue_limit is {queue_limit}; try again later", "queue_limit"
            )

    def _expire(self) -> None:
        now = self._clock()
        for request in self._deadlines.take_passed(now):
            waited = now - request.timings.arrival
            message = f"the deadline passed after {waited:.3f} s in the queue"
            self._end(request, FinishReason.ERROR, DeadlineError(message, "deadline").info())

    def _plan(self) -> bool:
        """Plan and submit one step; False when there is nothing to do."""
        start = self._clock()
        knobs = self.ledger.knobs
        planned = self._scheduler.plan(knobs, start)
        failure = self._scheduler.take_failure()
        replaced = bool(failure) and knobs.policy != DEFAULT
        if replaced:
            # The ledger says who did it, and undo brings it back.
            self.change_knobs({"policy": DEFAULT}, f"{knobs.policy}: {failure}")
        stranded = self._scheduler.take_stranded()
        for request in stranded:
            message = (
                f"the KV pool of {self.config.num_blocks} blocks has none left for this request, "
                f"which holds all {len(request.block_table)} that are in use"
            )
            self._end(request, FinishReason.ERROR, ErrorInfo("engine_error", message))
        if planned is None:
            return bool(stranded) or replaced
        now = self._clock()
        for request in planned.admitted:
            if request.timings.first_scheduled is None:
                self._observer.scheduled(request, now)
        flight = Flight(
            planned,
            start,
            now - start,
            knobs,
            len(self._scheduler.running),
            len(self._scheduler.waiting),
            self._scheduler.waiting_reason,
        )
        try:
            flight.handle = self._runner.submit(planned.plan)
        except Exception as error:
            while self._in_flight:  # The steps before it are sound.
                self._commit()
            self._step_failed(flight, error)
        else:
            self._in_flight.append(flight)
        return True

    def _commit(self) -> None:
        """Wait for the oldest step and take its tokens in."""
        flight = self._in_flight.popleft()
        planned = flight.planned
        try:
            result = self._runner.result(flight.handle)
        except Exception as error:
            self._step_failed(flight, error)
            return
        now = self._clock()
        ends, num_outputs = self._take_tokens(planned, result, now)
        self._scheduler.end_step(planned, publish=flight.knobs.prefix_caching)
        for request, reason, last in ends:
            self._end(request, reason, last=last)
        self._record(flight, planned.plan.rows, result.times, num_outputs, now)

    def _take_tokens(
        self, planned: Planned, result: StepResult, now: float
    ) -> tuple[list[tuple[Request, FinishReason, TokenOutput]], int]:
        """Append the sampled tokens; returns the requests that end with them, and how many tokens
        were taken: none for requests that ended while the step ran.
        """
        ends: list[tuple[Request, FinishReason, TokenOutput]] = []
        num_outputs = 0
        sampling = (
            request
            for request, row in zip(planned.requests, planned.plan.rows, strict=True)
            if row.samples
        )
        logprobs = result.logprobs or (None,) * len(result.token_ids)
        for request, token_id, found in zip(sampling, result.token_ids, logprobs, strict=True):
            request.num_in_flight -= 1
            if request.finish_reason is not None:
                continue
            if token_id < 0:
                info = ErrorInfo("engine_error", "the model gave logits that are not finite")
                # At once, so that the blocks of this step are not published: others would find NaN.
                self._end(request, FinishReason.ERROR, info)
                continue
            request.output_token_ids.append(token_id)
            num_outputs += 1
            self._observer.emitted(request, now)
            output = TokenOutput(
                request.request_id, (token_id,), logprobs=() if found is None else (found,)
            )
            reason = request.ends_at(token_id)
            if reason is None:
                self._outputs.append(output)
            else:
                ends.append((request, reason, output))
        return ends, num_outputs

    def _end(
        self,
        request: Request,
        reason: FinishReason,
        error: ErrorInfo | None = None,
        last: TokenOutput | None = None,
    ) -> None:
        """The one way a request ends, from wherever it stands."""
        request.error = error
        self._scheduler.finish(request, reason)
        self._observer.ended(request, self.ledger.knobs, self._clock())
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
        self._outputs.append((last or TokenOutput(request.request_id, ()))._replace(end=end))

    def _step_failed(self, failed: Flight, error: Exception) -> None:
        """A step raised. Prompts are the likely cause (they are what makes one step larger than the
        last): they end with the error, and decodes are recomputed. Without prompts all end, so that
        every failure ends at least one request and a broken device cannot loop.
        """
        planned = failed.planned
        log.error("step %d failed", planned.plan.step, exc_info=error)
        voided = [failed]
        while self._in_flight:  # Later steps were computed from what this one did not leave.
            later = self._in_flight.popleft()
            with contextlib.suppress(Exception):
                self._runner.result(later.handle)
            voided.append(later)
        for flight in voided:
            self._scheduler.take_back(flight.planned)
        both = zip(planned.requests, planned.plan.rows, strict=True)
        rows = [(request, row) for request, row in both if request.finish_reason is None]
        blamed = [request for request, row in rows if row.prefill] or [r for r, _row in rows]
        touched = dict.fromkeys(request for flight in voided for request in flight.planned.requests)
        self._scheduler.preempt(
            [r for r in touched if r.state is RequestState.RUNNING and r not in blamed],
            self.ledger.knobs,
        )
        cause = f"{type(error).__name__}: {error}"
        info = ErrorInfo("engine_error", f"the step that computed this request failed: {cause}")
        for request in blamed:
            self._end(request, FinishReason.ERROR, info)
        for flight in voided:
            self._record(flight, (), PhaseTimes(), 0, self._clock(), cause)

    def _record(
        self,
        flight: Flight,
        rows: Sequence[Row],
        times: PhaseTimes,
        num_outputs: int,
        result_at: float,
        error: str = "",
    ) -> None:
        """Leave the step's record; `rows` are those that were computed."""
        finished, self._ended_in_step = tuple(self._ended_in_step), []
        record = flight.record(
            rows,
            times,
            self._shape.cost(rows),
            self._scheduler.cache.pool,
            num_outputs=num_outputs,
            finished=finished,
            result_at=result_at,
            now=self._clock(),
            error=error,
        )
        self._observer.stepped(record)
        self._scheduler.observe(record)
