"""Observer: telemetry of one core: step records, samples, counts and drafts of snapshots."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from itertools import chain, islice

from engine.api.block_map import PinView
from engine.api.config import EngineConfig
from engine.api.knobs import Knobs
from engine.api.lifecycle import FinishReason
from engine.api.snapshot import RequestView, Totals
from engine.api.status import ModelCard
from engine.api.telemetry import BlockChange, Ended, PhaseTimes, Ring, StepRecord
from engine.batch.plan import Request, Stretch
from engine.batch.shape import ModelShape
from engine.cache.pool import BlockPool
from engine.core.comparison import Comparison
from engine.core.draft import Draft, Sketch
from engine.core.latencies import Latencies, Underway
from engine.core.ledger import KnobLedger
from engine.scheduling.composer import Books
from engine.scheduling.effective import effective
from engine.scheduling.scheduler import Planned, Scheduler

RECORDS = 16_384
MAX_WAITING_VIEWS = 200
MAX_ENDED_VIEWS = 64
# Requests further back in the queue are not judged, because the device waits meanwhile.
MAX_WAITING_JUDGED = 2000


class Observer:
    """Telemetry of one loaded model, written by the engine thread.

    Attributes:
        records: the last step records; any thread may read them.
    """

    def __init__(
        self,
        card: ModelCard,
        shape: ModelShape,
        config: EngineConfig,
        clock: Callable[[], float],
    ) -> None:
        self.records: Ring[StepRecord] = Ring(RECORDS)
        self._last_end = 0.0
        self._card = card
        self._shape = shape
        self._clock = clock
        self._config = config
        self._totals = dict.fromkeys((f.name for f in fields(Totals)), 0)
        self._latencies = Latencies()
        self._comparison = Comparison(self.records)
        self._ended: deque[RequestView] = deque(maxlen=MAX_ENDED_VIEWS)

    def arrived(self, request: Request, now: float) -> None:
        self._latencies.arrived(request, now)
        self._totals["requests"] += 1
        self._totals["prompt_tokens"] += request.num_prompt_tokens

    def refused(self) -> None:
        self._totals["requests"] += 1
        self._totals["refused"] += 1

    def planned(self, planned: Planned, books: Books) -> None:
        """A step was planned: note what only its record needs."""
        planned.running, planned.waiting = len(books.running), len(books.waiting)
        planned.given_slots, planned.unused_slots = _slots(books)

    def scheduled(self, request: Request, now: float) -> None:
        """A request got its first slot."""
        request.timings.first_scheduled = now
        self._latencies.scheduled(request, now)

    def emitted(self, request: Request, now: float) -> None:
        """A request got an output token."""
        self._latencies.emitted(request, now)

    def repeated(
        self,
        requests: Sequence[Request],
        start: float,
        ends: Sequence[float],
        new_blocks: Sequence[int],
        bubbles: int,
        books: Books,
    ) -> Stretch:
        """Steps that gave each of these requests one token were taken at once.

        Args:
            new_blocks: blocks that each step allocated; those reserved before do not count.
            books: those after the last step.
        """
        count, size = len(requests), books.cache.block_size
        given, unused = _slots(books)
        given -= size * sum(new_blocks)
        unused += count * len(ends) - size * sum(new_blocks)
        given_slots, unused_slots = [], []
        for blocks in new_blocks:
            given += size * blocks
            unused += size * blocks - count
            given_slots.append(given)
            unused_slots.append(unused)
        self._latencies.repeated(requests, start, ends)
        self._last_end = ends[-1]
        self._totals["output_tokens"] += count * len(ends)
        self._totals["evictions"] += len(
            books.cache.pool.drain_events().blocks(BlockChange.EVICTED)
        )
        names = tuple([request.request_id for request in requests])
        return Stretch(names, start, ends, bubbles, given_slots, unused_slots)

    def ended(self, request: Request, knobs: Knobs, now: float) -> None:
        """A request ended; its reason and error are already set."""
        request.timings.finished = now
        name = {FinishReason.ABORT: "aborted", FinishReason.ERROR: "failed"}
        self._totals[name.get(request.finish_reason or FinishReason.ERROR, "finished")] += 1
        self._latencies.ended(request, knobs, now)
        self._ended.append(Sketch.of(request, None, now).finish())

    def stepped(
        self,
        planned: Planned,
        times: PhaseTimes,
        pool: BlockPool,
        *,
        num_outputs: int,
        finished: tuple[Ended, ...],
        result_at: float,
        error: str,
    ) -> StepRecord:
        """Make and keep the record of a step, with the pool events since the last one.

        Args:
            num_outputs: tokens appended to requests.
            finished: requests that ended since the record before.
            result_at: engine clock when the runner returned its result, seconds.
            error: why the step failed, so that its rows were not computed; else empty.
        """
        plan = planned.plan
        rows = () if error else plan.rows
        prefill = [row.count for row in rows if row.prefill]
        cost, now = self._shape.cost(rows), self._clock()
        record = StepRecord(
            step=plan.step,
            start=planned.start,
            turn_start=max(planned.start, self._last_end),
            end=now,
            plan=planned.plan_time,
            commit=now - result_at,
            times=times,
            prefill_tokens=sum(prefill),
            decode_tokens=sum(row.count for row in rows) - sum(prefill),
            padding_tokens=sum(row.count for row in plan.padding if row.prefill),
            bubble_tokens=sum(row.count for row in plan.padding if not row.prefill),
            prefill_rows=len(prefill),
            decode_rows=len(rows) - len(prefill),
            output_tokens=num_outputs,
            budget=planned.budget,
            policy=planned.knobs.policy,
            model=self._card.name,
            cost=cost,
            running=planned.running,
            waiting=planned.waiting,
            head_wait=planned.head_wait,
            preempted=tuple(request.request_id for request in planned.preempted),
            preempted_for=tuple(request.preempted_for for request in planned.preempted),
            admitted=tuple(request.request_id for request in planned.admitted),
            finished=finished,
            swapped=tuple(request.request_id for request in planned.swapped),
            restored=tuple(request.request_id for request in planned.swapped_in),
            swapped_out_blocks=len(plan.swaps_out),
            swapped_in_blocks=len(plan.swaps_in),
            structured_rows=0 if error else _num_structured(planned),
            prefix_queried_tokens=planned.prefix_queried_tokens,
            prefix_hit_tokens=planned.prefix_hit_tokens,
            blocks=pool.drain_events(),
            free_blocks=pool.num_free,
            cached_blocks=pool.num_cached,
            used_blocks=pool.num_used,
            given_slots=planned.given_slots,
            unused_slots=planned.unused_slots,
            error=error,
        )
        self.records.append(record)
        self._last_end = now
        totals = self._totals
        totals["prefill_tokens"] += record.prefill_tokens
        totals["output_tokens"] += record.output_tokens
        totals["prefix_queried_tokens"] += record.prefix_queried_tokens
        totals["prefix_hit_tokens"] += record.prefix_hit_tokens
        totals["preemptions"] += len(record.preempted)
        totals["swaps"] += len(record.swapped)
        totals["evictions"] += len(record.blocks.blocks(BlockChange.EVICTED))
        return record

    def draft(
        self,
        scheduler: Scheduler,
        ledger: KnobLedger,
        pins: tuple[PinView, ...],
        now: float,
        *,
        stalled: bool,
    ) -> Draft:
        """Copy what a dashboard shows, as far as it must be copied between two steps."""
        cache, waiting = scheduler.cache, scheduler.waiting.head(MAX_WAITING_VIEWS)
        pool = cache.pool.copy()
        return Draft(
            time=now,
            step=self.records.total,
            config=self._config,
            model=self._card,
            running=[Sketch.of(request, None, now) for request in scheduler.running],
            waiting=[
                Sketch.of(request, scheduler.wait_at(position), now)
                for position, request in enumerate(waiting)
            ],
            ended=list(reversed(self._ended)),
            underway=[
                Underway.of(request)
                for request in chain(
                    scheduler.running, islice(scheduler.waiting, MAX_WAITING_JUDGED)
                )
            ],
            num_waiting=len(scheduler.waiting),
            head_wait=scheduler.head_wait,
            pool=replace(
                pool,
                counts=replace(
                    pool.counts,
                    host_blocks=cache.host.num_blocks,
                    host_used=cache.host.num_used,
                    snapshots=cache.snapshots.num_snapshots if cache.snapshots else 0,
                    snapshots_kept=cache.snapshots.num_kept if cache.snapshots else 0,
                ),
            ),
            requested=ledger.knobs,
            knobs=ledger.states(effective(ledger.knobs, scheduler.policy, scheduler.books)),
            knob_history=ledger.history,
            latencies=self._latencies.copy(),
            comparison=self._comparison,
            totals=replace(Totals(), **self._totals),
            pins=pins,
            stalled=stalled,
        )


def _num_structured(planned: Planned) -> int:
    """Rows that sample a token of a structured reply."""
    # 8 us for 256 rows without a structure; a generator expression takes 50 us.
    both = zip(planned.requests, planned.plan.rows, strict=True)
    return sum([row.samples for request, row in both if request.grammar is not None])


def _slots(books: Books) -> tuple[int, int]:
    """(token slots of used blocks, how many of them hold no token that is still needed).

    A shared block is full, so a slot that a request has not filled yet belongs to it alone.
    """
    size = books.cache.block_size
    unused = sum(
        [
            (len(r.block_table) + len(r.reserved_blocks)) * size - r.num_computed_tokens
            for r in books.running
        ]
    )
    kept = books.reclaim.pending_tables()
    if books.groups.live:
        kept += books.groups.parked_tables()
    if kept:  # Their owners do not run, so only blocks that running requests share are needed.
        needed = {block for request in books.running for block in request.block_table}
        unused += size * len({b for _seq, blocks in kept for b in blocks} - needed)
    return books.cache.pool.num_used * size, unused
