"""Scheduler: owns the requests, plans each step and processes its result."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat

from engine.api.knobs import Knobs
from engine.api.lifecycle import FinishReason, RequestState
from engine.api.telemetry import StepRecord
from engine.api.waiting import Cause, Wait
from engine.batch.plan import NewSequence, Request, Row, StepPlan
from engine.cache.manager import KVCache, Reclaim
from engine.scheduling.composer import Books, StepComposer
from engine.scheduling.forks import Forks
from engine.scheduling.groups import Groups
from engine.scheduling.orders import ORDERS, reorder
from engine.scheduling.policies import DEFAULT, POLICIES
from engine.scheduling.queue import WaitingQueue
from engine.scheduling.states import Save, States
from engine.scheduling.swap_cost import SwapCost
from engine.scheduling.swaps import NO_COPIES, Swaps

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Planned:
    """A planned step with its requests, and the facts of its planning that its record needs.

    Attributes:
        requests: the request of each row.
        epochs: each request's `num_preemptions` at planning. A request preempted since then has
            another block table.
        admitted: requests that got a slot.
        preempted: requests that lost their slot since the last plan.
        swapped: those of `preempted` that are swapped out.
        swapped_out: requests whose blocks the plan copies to host memory.
        swapped_in: requests whose blocks the plan copies back.
        saves: snapshots of states that the plan writes.
        prefix_queried_tokens, prefix_hit_tokens: tokens of requests admitted for the first time.
        budget: tokens that the policy allowed.
        knobs: the knobs in force.
        head_wait: why the head of the queue waits.
        start: engine clock when the planning began, seconds.
        plan_time: seconds that the planning took.
        running, waiting: numbers of requests after the planning.
        given_slots, unused_slots: see `engine.api.telemetry.StepRecord`.
        handle: the runner's handle, for `Runner.result`.
    """

    plan: StepPlan
    requests: tuple[Request, ...]
    epochs: tuple[int, ...]
    admitted: tuple[Request, ...]
    preempted: tuple[Request, ...]
    swapped: tuple[Request, ...]
    swapped_out: tuple[Request, ...]
    swapped_in: tuple[Request, ...]
    saves: tuple[Save, ...]
    prefix_queried_tokens: int
    prefix_hit_tokens: int
    budget: int
    knobs: Knobs
    head_wait: Wait | None
    start: float
    plan_time: float = 0.0
    running: int = 0
    waiting: int = 0
    given_slots: int = 0
    unused_slots: int = 0
    handle: object = None


class Scheduler:
    """Queues requests, plans steps and applies their results. It knows no model and reads no clock.

    Args:
        swap_cost: cost of swapping and recomputing; None if the size of blocks is unknown.

    Attributes:
        books: what its parts share.
        running: requests that hold a slot, in the order of admission.
        policy: composed the last step.
        head_wait: why the head of the queue waits, as of the last plan; None if none waits.
        wake_at: when the policy wants a plan even if nothing else happens; None if never.
        step: number of the last step planned.
    """

    def __init__(self, cache: KVCache, knobs: Knobs, swap_cost: SwapCost | None = None) -> None:
        self.cache = cache
        self.running: list[Request] = []
        self.head_wait: Wait | None = None
        self.wake_at: float | None = None
        self.step = 0
        self.books = Books(
            cache=cache,
            running=self.running,
            waiting=ORDERS[knobs.order](knobs),
            groups=Groups(),
            reclaim=Reclaim(cache),
            swaps=Swaps(cache, swap_cost or SwapCost()),
            forks=Forks(cache),
            states=States(cache) if cache.snapshots is not None else None,
        )
        self._released: list[int] = []
        self._known: set[int] = set()
        self._arrived: list[Request] = []
        self._admitted: list[Request] = []
        self._preempted: list[Request] = []
        self._stranded: list[Request] = []
        try:
            self.policy = POLICIES[knobs.policy]()
        except Exception:  # The first step tries again, and reports what is raised.
            self.policy = POLICIES[DEFAULT]()
        self._failure = ""
        self._ordered_by = knobs

    @property
    def waiting(self) -> WaitingQueue:
        """Waiting requests, in the order set by the knobs."""
        return self.books.waiting

    def add(self, request: Request) -> None:
        """Queue a request."""
        self.waiting.push(request)
        self._arrived.append(request)
        # During a pause nothing consumes these, and most may have left the queue meanwhile.
        if len(self._arrived) > 2 * len(self.waiting) + 1000:
            self._arrived = [r for r in self._arrived if r.state is RequestState.WAITING]

    def set_priority(self, request: Request, priority: int) -> None:
        """Change the priority of a request that has not ended. A running one keeps its slot: its
        new priority counts when a victim is chosen and when it waits again.
        """
        if request.state is RequestState.RUNNING:
            request.priority = priority
        else:
            self.waiting.set_priority(request, priority)

    def plan(self, knobs: Knobs, now: float) -> Planned | None:
        """Compose the next step; None if there is nothing to compute now.

        Progress counts from planning: `num_computed_tokens` moves past the planned tokens, and a
        row that samples adds a placeholder, so that the next step can be planned at once.
        """
        self._follow_order(knobs)
        self.cache.pool.time = now
        composer = StepComposer(knobs, self.books, now)
        if not knobs.paused:
            try:
                if self.policy.name != knobs.policy:
                    self._failure = ""
                    self.policy = POLICIES[knobs.policy]()
                    self._arrived = sorted(self.waiting, key=lambda request: request.ordinal)
                composer.arrived, self._arrived = self._arrived, []
                self.policy.compose(composer)
            except Exception as error:  # The rows planned so far can still run.
                self._policy_failed(knobs.policy, error)
        head = self.waiting.first()
        self.head_wait = self._why(composer, head) if head else None
        self.wake_at = composer.wake_at
        if composer.preempted:
            self._forget(composer.preempted)
            self._preempted += composer.preempted
        self._admitted += composer.admitted
        self._stranded += composer.stranded
        return self._freeze(composer) if composer.rows else None

    def observe(self, record: StepRecord) -> None:
        """Pass the record of a step that has ended to the policy."""
        if self.books.swaps.exist:
            self.books.swaps.cost.observe(record)
        try:
            self.policy.observe(record)
        except Exception as error:
            self._policy_failed(self.policy.name, error)

    def repetition(self, knobs: Knobs) -> tuple[StepPlan, int] | None:
        """The next plan, if it gives every running request one token and so do those after it,
        until a request arrives or ends; else None. It is not counted as planned.

        Returns:
            the plan, and how many such steps the announced lengths and the pool allow.
        """
        books, running = self.books, self.running
        waiting, slots = len(books.waiting), max(knobs.max_num_seqs - books.num_taken, 0)
        if (
            not running
            or self._arrived
            or self.wake_at is not None
            or knobs.paused
            or knobs is not self._ordered_by
            or knobs.policy != self.policy.name
            or not self.policy.repeats(num_waiting=waiting, num_slots=slots)
            or len(running) > knobs.max_num_batched_tokens
            or books.states is not None
            or books.swaps.exist
            or books.reclaim.num_pending
        ):
            return None
        rows: dict[Request, Row] = {}
        for request in running:
            start = request.num_computed_tokens
            decodes = request.num_tokens - start == 1 and start >= request.num_prompt_tokens
            if not decodes or request.stop_token_ids or request.grammar is not None:
                return None
            rows[request] = Row(request.ordinal, start, 1, (), samples=True, prefill=False)
        most = min([request.max_tokens - request.num_tokens for request in running]) - 1
        available = self.cache.pool.num_available
        if self._missing(most) > available:
            most = bisect_right(range(most), available, key=self._missing) - 1
        padding = books.groups.padding(rows) if books.groups.live else ()
        return StepPlan(step=self.step + 1, rows=tuple(rows.values()), padding=padding), most

    def _missing(self, steps: int) -> int:
        """Blocks that running requests still need if each of them gets a token in so many steps."""
        missing = self.cache.missing
        return sum([missing(one, one.num_computed_tokens + steps) for one in self.running])

    def repeated(self, starts: Sequence[float], ends: Sequence[float], knobs: Knobs) -> list[int]:
        """Apply steps of `repetition`, whose tokens the requests have already.

        Returns:
            how many blocks each step allocated, without those reserved before.
        """
        cache, running, steps = self.cache, self.running, len(ends)
        size, new_blocks = cache.block_size, [0] * steps
        # (step, whether it publishes, place in the batch): a step allocates, then publishes.
        changes: list[tuple[int, bool, int]] = []
        for place, request in enumerate(running):
            start = request.num_computed_tokens
            grows = len(request.block_table) * size - start
            changes += [(step, False, place) for step in range(grows, steps, size)]
            if knobs.prefix_caching:
                fills = max((request.num_published + 1) * size - start - 1, 0)
                changes += [(step, True, place) for step in range(fills, steps, size)]
            request.num_computed_tokens = request.num_committed_tokens = start + steps
        for step, publishes, place in sorted(changes):
            request = running[place]
            end = request.num_computed_tokens - steps + step + 1
            cache.pool.time = starts[step]
            if publishes:
                cache.publish(request, end)
            else:
                used = cache.pool.num_used
                cache.extend(request, end)
                new_blocks[step] += cache.pool.num_used - used
        cache.pool.time = starts[-1]
        slots = knobs.max_num_seqs
        free = max(slots - self.books.num_taken, 0)
        self.waiting.step_begins(running, free, slots, starts[-1])
        self.waiting.served(chain.from_iterable(repeat(running, steps)))
        self.policy.repeated(running, starts, ends)
        self.step += steps
        return new_blocks

    def drain_failure(self) -> str:
        """Remove and return the policy's failure since the last call; empty if there was none."""
        failure, self._failure = self._failure, ""
        return failure

    def _policy_failed(self, name: str, error: Exception) -> None:
        """Record what a policy raised, which ends neither the engine nor a request."""
        log.error("the policy %s failed", name, exc_info=error)
        self._failure = f"{type(error).__name__}: {error}"

    def _follow_order(self, knobs: Knobs) -> None:
        """Sort the queue anew if a knob that decides its order has changed."""
        if knobs is self._ordered_by:
            return
        used = ("order", "draining", *ORDERS[knobs.order].uses)
        if any(getattr(knobs, name) != getattr(self._ordered_by, name) for name in used):
            self.books.waiting = reorder(knobs, self.waiting)
        self._ordered_by = knobs

    def _why(self, composer: StepComposer, head: Request) -> Wait:
        """Why the head of the queue waits."""
        return (
            composer.halt(head)
            or composer.wait
            or composer.wait_of(head)
            or Wait(Cause.POLICY, of=f"held by {self.policy.name}")
        )

    def drain_stranded(self) -> list[Request]:
        """Remove and return requests that need a block when no other holds one: they must end."""
        stranded, self._stranded = self._stranded, []
        return stranded

    def end_step(self, planned: Planned, *, publish: bool) -> None:
        """Process a step's end: publish the blocks it filled, free those that waited for it."""
        size, running = self.cache.block_size, RequestState.RUNNING
        for request, epoch, row in zip(
            planned.requests, planned.epochs, planned.plan.rows, strict=True
        ):
            if request.state is running and request.num_preemptions == epoch:
                end = row.start + row.count
                request.num_committed_tokens = end
                if publish and end // size > request.num_published:
                    self.cache.publish(request, end)
        if self.books.states is not None:
            self.books.states.step_ended(planned.saves, publish=publish)
        self.books.reclaim.step_ended(planned.plan.step)

    def preempt(self, requests: Sequence[Request], knobs: Knobs) -> None:
        """Send running requests back to the queue for recomputation, between two steps."""
        composer = StepComposer(knobs, self.books, self.cache.pool.time)
        for request in requests:
            composer.preempt(request, keep=False)
        self._forget(requests)
        self._preempted += requests

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request in any state and free its blocks; ending it again does nothing."""
        if request.state is RequestState.FINISHED:
            return
        if request.state is RequestState.RUNNING:
            self.running.remove(request)
            blocks = self.cache.detach(request)
            if request in self.books.groups.live:
                for seq, freed in self.books.groups.leave(request, blocks):
                    self.books.reclaim.free(seq, freed)
            else:
                self.books.reclaim.free(request.ordinal, blocks)
            self._forget([request])
            if self.books.states is not None:
                self.books.states.drop(request)
        else:
            self.waiting.remove(request)
        if request.host_blocks:
            self.books.swaps.drop(request)
        request.state = RequestState.FINISHED
        request.finish_reason = reason

    def wait_at(self, position: int) -> Wait:
        """Why the request at `position` of the queue, from 0, waits."""
        return replace(self.head_wait or Wait(Cause.NEXT), ahead=position)

    def check(self) -> None:
        """Compare the pool's accounting with the block tables.

        Raises:
            AssertionError: a block is lost, held twice, or counted wrongly.
        """
        tables = [(r.ordinal, r.block_table + r.reserved_blocks) for r in self.running]
        tables += self.books.groups.parked_tables() + self.books.reclaim.pending_tables()
        self.cache.pool.check(tables)
        assert not any(r.block_table or r.reserved_blocks for r in self.waiting)
        self.books.swaps.check(self.running, tuple(self.waiting))
        if self.cache.snapshots is not None:
            self.cache.snapshots.check()

    def _forget(self, requests: Sequence[Request]) -> None:
        """Make the runner release sequences that it knows."""
        for request in requests:
            if request.ordinal in self._known:
                self._known.remove(request.ordinal)
                self._released.append(request.ordinal)

    def _freeze(self, composer: StepComposer) -> Planned:
        self.step += 1
        queried = hits = 0
        # Some may have been admitted in an earlier plan that ran nothing, and have gone since.
        running = RequestState.RUNNING
        admitted = tuple(dict.fromkeys(r for r in self._admitted if r.state is running))
        self._admitted = []
        for request in admitted:
            if not request.num_preemptions:
                request.num_cached_tokens = request.num_computed_tokens
                queried += request.num_prompt_tokens
                hits += request.num_cached_tokens
        # Decodes first; the sort is stable.
        planned = sorted(composer.rows.items(), key=_is_prefill)
        requests, rows = zip(*planned, strict=True)
        new = self._advance(planned)
        self.waiting.served(request for request, row in planned if row.samples)
        preempted, self._preempted = tuple(self._preempted), []
        swapped = tuple([request for request in preempted if request.host_blocks])
        out = back = NO_COPIES
        if self.books.swaps.out or self.books.swaps.back:
            out, back = self.books.swaps.drain()
        restores, saves = (
            self.books.states.drain(requests) if self.books.states is not None else ((), ())
        )
        copies, sources = self.books.forks.drain() if self.books.forks.copies else ((), ())
        plan = StepPlan(
            step=self.step,
            rows=rows,
            new=new,
            released=tuple(self._released),
            swaps_out=out.pairs,
            copies=copies,
            swaps_in=back.pairs,
            padding=self.books.groups.padding(composer.rows) if self.books.groups.live else (),
            restores=restores,
            saves=tuple([(save.request.ordinal, save.snapshot) for save in saves]),
        )
        if self.books.swaps.exist:
            self.books.swaps.cost.planned(self.step, rows, len(out.pairs) + len(back.pairs))
        self._released = []
        seqs = {row.seq for row in rows}
        seqs.update(request.ordinal for request in back.requests)
        seqs.update(sources)
        for request in composer.admitted:
            request.fork_of = None  # It has copied what it could, so the source may be freed.
        self.books.reclaim.step_begins(plan.step, seqs)
        return Planned(
            plan=plan,
            requests=requests,
            epochs=tuple([request.num_preemptions for request in requests]),
            admitted=admitted,
            preempted=preempted,
            swapped=swapped,
            swapped_out=out.requests,
            swapped_in=back.requests,
            saves=saves,
            prefix_queried_tokens=queried,
            prefix_hit_tokens=hits,
            budget=composer.max_budget,
            knobs=composer.knobs,
            head_wait=self.head_wait,
            start=composer.now,
        )

    def _advance(self, planned: Sequence[tuple[Request, Row]]) -> tuple[NewSequence, ...]:
        """Advance the planned requests; returns the sequences that are new to the runner."""
        new = []
        for request, row in planned:
            if request.ordinal not in self._known:
                self._known.add(request.ordinal)
                new.append(_new_sequence(request, row))
            request.num_computed_tokens = row.start + row.count
            if row.samples:
                request.num_in_flight += 1
                request.num_tokens += 1
        return tuple(new)


def _is_prefill(item: tuple[Request, Row]) -> bool:
    return item[1].prefill


def _new_sequence(request: Request, row: Row) -> NewSequence:
    eos = frozenset[int]() if request.sampling.ignore_eos else request.eos_token_ids
    return NewSequence(
        seq=request.ordinal,
        token_ids=(*request.prompt_token_ids, *request.output_token_ids),
        num_prompt_tokens=request.num_prompt_tokens,
        sampling=request.sampling,
        seed=request.seed,
        suppressed=tuple(eos | request.stop_token_ids),
        block_ids=tuple(request.block_table[: len(request.block_table) - len(row.new_blocks)]),
        grammar=request.grammar,
        num_logprobs_sent=request.num_logprobs_sent,
    )
