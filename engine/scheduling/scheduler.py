"""Scheduler: owns the requests, makes a plan for each step and takes its result in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.cache.manager import KVCache
from engine.knobs import Knobs, KnobValue
from engine.plan import NewSequence, Row, StepPlan
from engine.request import FinishReason, Request, RequestState
from engine.scheduling.composer import PlannedRow, StepComposer
from engine.scheduling.policies import POLICIES
from engine.scheduling.policy import Policy
from engine.scheduling.queue import WaitingQueue
from engine.scheduling.reclaim import Reclaim


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan and the requests behind it.

    Attributes:
        requests: one for each row.
        epochs: each request's `num_preemptions` when planned; a later one has another block table.
        admitted: requests that got a slot.
        preempted: requests that lost theirs since the plan before.
        prefix_queried_tokens, prefix_hit_tokens: of requests admitted for the first time.
    """

    plan: StepPlan
    requests: tuple[Request, ...]
    epochs: tuple[int, ...]
    admitted: tuple[Request, ...]
    preempted: tuple[Request, ...]
    prefix_queried_tokens: int
    prefix_hit_tokens: int


class Scheduler:
    """Requests in, plans out, tokens back in. Pure Python: knows no model and reads no clock.

    Attributes:
        running: requests that hold a slot, in the order of admission.
        waiting: requests that do not.
        waiting_reason: why the head of the queue waits, as of the last plan.
        step: number of the last step planned.
    """

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.running: list[Request] = []
        self.waiting = WaitingQueue()
        self.waiting_reason = ""
        self.step = 0
        self._reclaim = Reclaim(cache)
        self._released: list[int] = []
        self._known: set[int] = set()
        self._preempted: list[Request] = []
        self._stranded: list[Request] = []
        self._policy: Policy = next(iter(POLICIES.values()))()

    def add(self, request: Request) -> None:
        """Queue a request."""
        self.waiting.push(request)

    def plan(self, knobs: Knobs) -> Planned | None:
        """Compose the next step; None when there is nothing to compute now.

        Progress counts from here on: `num_computed_tokens` moves past the planned tokens, and a row
        that samples leaves a placeholder, so that the next step can be planned at once.
        """
        if self._policy.name != knobs.policy:
            self._policy = POLICIES[knobs.policy]()
        composer = StepComposer(knobs, self.cache, self.running, self.waiting, self._reclaim)
        if not knobs.paused:
            self._policy.compose(composer)
        head = self.waiting.first()
        self.waiting_reason = composer.obstacle(head) if head else ""
        self._forget(composer.preempted)
        self._preempted += composer.preempted
        self._stranded += composer.stranded
        return self._freeze(composer) if composer.rows else None

    def take_stranded(self) -> list[Request]:
        """Requests that need a block though nobody else holds one: they can only be ended."""
        stranded, self._stranded = self._stranded, []
        return stranded

    def take_back(self, planned: Planned) -> None:
        """A step failed: its result will not come. The failed rows' progress is undone."""
        self._reclaim.step_ended(planned.plan.step)
        for request, row in zip(planned.requests, planned.plan.rows, strict=True):
            request.num_in_flight -= row.samples

    def end_step(self, planned: Planned, *, publish: bool) -> None:
        """A step's tokens are in: publish the blocks it filled, free those that waited for it."""
        if publish:
            rows = zip(planned.requests, planned.epochs, planned.plan.rows, strict=True)
            for request, epoch, row in rows:
                if request.state is RequestState.RUNNING and request.num_preemptions == epoch:
                    self.cache.publish(request, row.start + row.count)
        self._reclaim.step_ended(planned.plan.step)

    def preempt(self, requests: Sequence[Request], knobs: Knobs) -> None:
        """Send running requests back to the queue, to be recomputed, between two steps."""
        composer = StepComposer(knobs, self.cache, self.running, self.waiting, self._reclaim)
        for request in requests:
            composer.preempt(request)
        self._forget(requests)
        self._preempted += requests

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request wherever it stands and free its blocks; ending it again does nothing."""
        if request.state is RequestState.FINISHED:
            return
        if request.state is RequestState.RUNNING:
            self.running.remove(request)
            self._reclaim.free(request)
            self._forget([request])
        else:
            self.waiting.remove(request)
        request.state = RequestState.FINISHED
        request.finish_reason = reason

    def effective(self, knobs: Knobs) -> dict[str, tuple[KnobValue, str]]:
        """Knobs whose value in force is not the requested one, or that are ignored, and why."""
        notes: dict[str, tuple[KnobValue, str]] = {
            name: (getattr(knobs, name), f"ignored by {self._policy.name}")
            for name in self._policy.ignores
        }
        excess = len(self.running) - knobs.max_num_seqs
        if excess > 0:
            note = f"{excess} more than asked for still run"
            notes["max_num_seqs"] = (len(self.running), note)
        if len(self.running) > knobs.max_num_batched_tokens:
            note = f"{len(self.running)} still run: the last admitted get no token for now"
            notes["max_num_batched_tokens"] = (knobs.max_num_batched_tokens, note)
        if knobs.draining and self.running:
            notes["draining"] = (True, f"{len(self.running)} still run")
        return notes

    def wait_reason(self, request: Request, position: int) -> str:
        """Why a request at `position` of the queue waits."""
        if position == 0:
            return self.waiting_reason or "it is next"
        reason = self.waiting_reason
        return f"behind {position}: {reason}" if reason else f"behind {position}"

    def check(self) -> None:
        """Compare the pool's books with the block tables.

        Raises:
            AssertionError: a block is lost, held twice, or counted wrongly.
        """
        tables = [(request.ordinal, request.block_table) for request in self.running]
        self.cache.pool.check(tables + self._reclaim.pending_tables())
        assert all(not request.block_table for request in self.waiting)

    def _forget(self, requests: Sequence[Request]) -> None:
        """Have the runner release sequences that it knows."""
        for request in requests:
            if request.ordinal in self._known:
                self._known.remove(request.ordinal)
                self._released.append(request.ordinal)

    def _freeze(self, composer: StepComposer) -> Planned:
        self.step += 1
        queried = hits = 0
        new = []
        for request in composer.admitted:
            new.append(_new_sequence(request, composer.rows[request]))
            self._known.add(request.ordinal)
            if not request.num_preemptions:
                request.num_cached_tokens = request.num_computed_tokens
                queried += request.num_prompt_tokens
                hits += request.num_cached_tokens
        planned_rows = sorted(composer.rows.values(), key=lambda row: row.prefill)
        rows = []
        for planned in planned_rows:
            request = planned.request
            samples = planned.start + planned.count == request.num_tokens
            request.num_computed_tokens += planned.count
            request.num_in_flight += samples
            rows.append(
                Row(
                    seq=request.ordinal,
                    start=planned.start,
                    count=planned.count,
                    new_blocks=planned.new_blocks,
                    samples=samples,
                    prefill=planned.prefill,
                )
            )
        plan = StepPlan(
            step=self.step, rows=tuple(rows), new=tuple(new), released=tuple(self._released)
        )
        preempted, self._preempted = tuple(self._preempted), []
        self._released = []
        self._reclaim.step_begins(plan.step, frozenset(row.seq for row in rows))
        requests = tuple(planned.request for planned in planned_rows)
        return Planned(
            plan=plan,
            requests=requests,
            epochs=tuple(request.num_preemptions for request in requests),
            admitted=tuple(composer.admitted),
            preempted=preempted,
            prefix_queried_tokens=queried,
            prefix_hit_tokens=hits,
        )


def _new_sequence(request: Request, row: PlannedRow) -> NewSequence:
    eos = () if request.sampling.ignore_eos else tuple(request.eos_token_ids)
    return NewSequence(
        seq=request.ordinal,
        token_ids=tuple(request.prompt_token_ids + request.output_token_ids),
        num_prompt_tokens=request.num_prompt_tokens,
        sampling=request.sampling,
        seed=request.seed,
        suppressed=eos + request.sampling.stop_token_ids,
        block_ids=tuple(request.block_table[: len(request.block_table) - len(row.new_blocks)]),
    )
