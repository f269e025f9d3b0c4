"""EngineCore: plan, run, commit. One thread, no locks, deterministic given clock and seeds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from engine.api.block_map import BlockView
from engine.api.client import Submission
from engine.api.config import EngineConfig
from engine.api.knobs import KnobChange, Knobs
from engine.api.lifecycle import FinishReason
from engine.api.sampling import SamplingParams
from engine.api.snapshot import Snapshot
from engine.api.status import ModelCard
from engine.api.telemetry import PhaseTimes, Ring, StepRecord
from engine.api.waiting import Wait
from engine.batch.plan import RepeatingRunner, Runner, StopFound, Stretch, TokenOutput
from engine.batch.shape import ModelShape
from engine.cache.manager import KVCache
from engine.core.draft import Draft
from engine.core.failures import Failures
from engine.core.ledger import NO_NOTES, KnobLedger
from engine.core.observer import Observer
from engine.core.pins import Pins
from engine.core.request_table import RequestTable
from engine.scheduling.policies import DEFAULT, policy_names
from engine.scheduling.scheduler import Planned, Scheduler
from engine.scheduling.swap_cost import SwapCost
from engine.structure.grammar import Grammar


class EngineCore:
    """A continuous-batching engine over one runner.

    Everything happens in `step`: requests, aborts and knob changes since the last step take effect
    at its start. Nothing here sleeps, and `clock` is the only source of time.

    Args:
        key: a name of model and dtype for the prefix cache.
        eos_token_ids: the model's end-of-sequence tokens.
        clock: monotonic seconds.
        swap_rate: bytes a second of copies to host memory, until steps measure it; 0 if unknown.
        knob_notes: see `KnobLedger`.

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
        swap_rate: float = 0.0,
        knob_notes: Mapping[str, str] = NO_NOTES,
    ) -> None:
        self.config = config
        self.ledger = KnobLedger(knobs, config, policy_names(), knob_notes)
        self._runner = runner
        self._repeating = runner if isinstance(runner, RepeatingRunner) else None
        self._clock = clock
        cache = KVCache(config, key, keeps_states=bool(shape.state_bytes))
        self.pins = Pins(cache, config)
        block_bytes = shape.kv_bytes_per_token * config.block_size
        self._scheduler = Scheduler(cache, knobs, SwapCost(block_bytes, swap_rate))
        self._observer = Observer(card, shape, config, clock)
        self._table = RequestTable(
            config,
            shape.vocab_size,
            eos_token_ids,
            self._scheduler,
            self._observer,
            self.ledger,
            clock,
        )
        self._in_flight: deque[Planned] = deque()
        self._idle = True
        self._failures = Failures(runner, self._scheduler, self._table, self.ledger)

    @property
    def records(self) -> Ring[StepRecord]:
        """Records of the last steps; any thread may read them."""
        return self._observer.records

    @property
    def num_unfinished(self) -> int:
        return len(self._table.live)

    @property
    def idle(self) -> bool:
        """Whether `step` has nothing to do until a request, abort, knob change or `next_wake`."""
        return self._idle and not self._table.has_outputs

    @property
    def head_wait(self) -> Wait | None:
        """Why the head of the queue waits, as of the last plan."""
        return self._scheduler.head_wait

    @property
    def next_wake(self) -> float | None:
        """Clock time at which an idle core needs a step: a deadline passes, or the policy asked for
        one. None if there is no such time.
        """
        moments = (self._table.next_deadline, self._scheduler.wake_at)
        return min((moment for moment in moments if moment is not None), default=None)

    def add_request(
        self,
        submission: Submission,
        token_ids: Sequence[int],
        sampling: SamplingParams,
        arrival: float | None = None,
        grammar: Grammar | None = None,
    ) -> None:
        """Queue a request. If it is refused, the next `step` returns its end.

        Args:
            submission: the request's origin and priority. Its prompt and sampling are not read
                here, because `token_ids` and `sampling` were derived from them.
            arrival: engine clock when it arrived, seconds; None means now.
            grammar: the compiled structure of `sampling`, if it has one.
        """
        self._idle = False
        self._table.add(submission, token_ids, sampling, arrival, grammar)

    def abort(self, request_id: str) -> None:
        """End a request with reason `abort`; ignores one that is unknown or has ended."""
        request = self._table.live.get(request_id)
        if request is not None:
            self._table.end(request, FinishReason.ABORT)
            self._idle = False

    def set_priority(self, request_id: str, priority: int) -> None:
        """Change a request's priority; ignores one that is unknown or has ended.

        Args:
            priority: already checked with `check_priority` (`engine.core.admission`).
        """
        request = self._table.live.get(request_id)
        if request is not None:
            self._scheduler.set_priority(request, priority)
            self._idle = False  # Another request may now be the head of the queue, and fit.

    def abort_all(self) -> None:
        """End every request with reason `abort`."""
        for request_id in list(self._table.live):
            self.abort(request_id)

    def stop(self, found: StopFound) -> None:
        """End a request whose text contains a stop string, and drop the tokens after it."""
        request = self._table.live.get(found.request_id)
        if request is not None:
            del request.output_token_ids[found.num_output_tokens :]
            self._table.end(request, FinishReason.STOP)
            self._idle = False

    def change_knobs(self, changes: Mapping[str, object], who: str) -> Knobs:
        """Change knobs from the next step on; any thread may call this.

        Returns:
            all knobs as they are requested now.

        Raises:
            InvalidConfigError: nothing was changed.
        """
        return self.ledger.change(changes, who, self._clock(), self._scheduler.step)

    def undo_knobs(self, who: str, within: float = 0.0) -> KnobChange | None:
        """Undo the last change of knobs, as `KnobLedger.undo` does; any thread may call this."""
        return self.ledger.undo(who, self._clock(), self._scheduler.step, within)

    def step(self) -> list[TokenOutput]:
        """Plan and start as many steps as the runner accepts, then commit the oldest.

        Returns new tokens and ends, including those of refused and aborted requests.

        Raises:
            DeviceLostError: nothing can be computed any more. The owner of the core fails all
                requests.
        """
        self._table.expire()
        planned = False
        while len(self._in_flight) < self._runner.depth and self._plan():
            planned = True
        # A commit may free a slot or blocks, so that the next step can be planned.
        self._idle = not planned and not self._in_flight
        if self._in_flight:
            self._commit()
        return self.drain_outputs()

    def repeat(self, until: float) -> Stretch | None:
        """Take the next steps that end before `until` at once, if the runner is a simulation and
        each of them gives every running request one token and nothing else.

        Their results are those of `step`, without outputs and records. None if the next step is
        another one.
        """
        runner, knobs, start = self._repeating, self.ledger.knobs, self._clock()
        if runner is None or self._in_flight or self._table.has_outputs:
            return None
        if (deadline := self._table.next_deadline) is not None:
            until = min(until, deadline)
        requests = self._scheduler.running
        if any(request.timings.last_token != start for request in requests):
            return None
        repetition = self._scheduler.repetition(knobs)
        if repetition is None:
            return None
        plan, most = repetition
        token_id, ends = runner.repeat(plan, most, until)
        if not ends:
            return None
        self._table.repeated(requests, token_id, len(ends))
        new_blocks = self._scheduler.repeated([start, *ends[:-1]], ends, knobs)
        return self._observer.repeated(
            requests, start, ends, new_blocks, len(plan.padding), self._scheduler.books
        )

    def drain_outputs(self) -> list[TokenOutput]:
        """Outputs that no step produced: ends by a refusal, an abort or a stop string."""
        return self._table.drain_outputs()

    def snapshot(self) -> Snapshot:
        return self.draft().snapshot(self._clock())

    def block(self, number: int) -> BlockView | None:
        """Details of a block; None if there is no such block. For the engine's thread only."""
        if not 0 <= number < self.config.num_blocks:
            return None
        running = {request.ordinal: request for request in self._scheduler.running}
        self._scheduler.cache.pool.time = self._clock()
        return self._scheduler.cache.view(number, running)

    def draft(self) -> Draft:
        """The data of this moment for a snapshot, which any thread may finish."""
        pins = self.pins.views(prefix_caching=self.ledger.knobs.prefix_caching)
        stalled = bool(self._table.live) and self.idle and self.next_wake is None
        return self._observer.draft(
            self._scheduler, self.ledger, pins, self._clock(), stalled=stalled
        )

    def check(self) -> None:
        """Verify the cache's accounting; for tests and soaks.

        Raises:
            AssertionError: it does not balance.
        """
        self._scheduler.check()

    def _plan(self) -> bool:
        """Plan and start one step; False if there was nothing to do."""
        start = self._clock()
        knobs = self.ledger.knobs
        planned = self._scheduler.plan(knobs, start)
        failure = self._scheduler.drain_failure()
        replaced = bool(failure) and knobs.policy != DEFAULT
        if replaced:
            # The ledger records what the policy raised, and undo restores the policy.
            self.change_knobs({"policy": DEFAULT}, f"{knobs.policy}: {failure}")
        stranded = self._scheduler.drain_stranded()
        self._table.end_stranded(stranded)
        if planned is None:
            return bool(stranded) or replaced
        now = self._clock()
        for request in planned.admitted:
            if request.timings.first_scheduled is None:
                self._observer.scheduled(request, now)
        planned.plan_time = now - start
        self._observer.planned(planned, self._scheduler.books)
        try:
            planned.handle = self._runner.start_step(planned.plan)
        except Exception as error:
            while self._in_flight:  # The steps before this one are sound.
                self._commit()
            self._step_failed(planned, error)
        else:
            self._in_flight.append(planned)
        return True

    def _commit(self) -> None:
        """Wait for the oldest step and process its tokens."""
        planned = self._in_flight.popleft()
        try:
            result = self._runner.result(planned.handle)
        except Exception as error:
            self._step_failed(planned, error)
            return
        self._failures.in_a_row = 0
        now = self._clock()
        ends, num_outputs = self._table.append_tokens(planned, result, now)
        self._scheduler.end_step(planned, publish=planned.knobs.prefix_caching)
        for request, reason, last in ends:
            self._table.end(request, reason, last=last)
        self._record(planned, result.times, num_outputs, now)

    def _step_failed(self, failed: Planned, error: Exception) -> None:
        """End the requests at fault, and have the others of this step and later ones recomputed."""
        voided, cause = self._failures.handle(failed, self._in_flight, error)
        for planned in voided:
            self._record(planned, PhaseTimes(), 0, self._clock(), cause)

    def _record(
        self,
        planned: Planned,
        times: PhaseTimes,
        num_outputs: int,
        result_at: float,
        error: str = "",
    ) -> None:
        """Write the step's record, and let the policy learn from it."""
        record = self._observer.stepped(
            planned,
            times,
            self._scheduler.cache.pool,
            num_outputs=num_outputs,
            finished=self._table.drain_ended(),
            result_at=result_at,
            error=error,
        )
        self._scheduler.observe(record)
