"""Observer: telemetry of one core: step records, samples, counts and drafts of snapshots."""

from __future__ import annotations

from collections import deque
from dataclasses import fields, replace
from itertools import chain, islice

from engine.api.block_map import PinView
from engine.api.config import EngineConfig
from engine.api.knobs import Knobs
from engine.api.lifecycle import FinishReason
from engine.api.snapshot import RequestView, Totals
from engine.api.status import ModelCard
from engine.api.telemetry import BlockChange, Ring, StepRecord
from engine.batch.request import Request
from engine.core.comparison import Comparison
from engine.core.draft import Draft, Sketch
from engine.core.latencies import Latencies, Underway
from engine.core.ledger import KnobLedger
from engine.scheduling.scheduler import Scheduler

RECORDS = 16_384
MAX_WAITING_VIEWS = 200
MAX_ENDED_VIEWS = 64
# A longer queue is judged only up to here, because the device waits meanwhile.
MAX_WAITING_JUDGED = 2000


class Observer:
    """Telemetry of one loaded model, written by the engine thread.

    Attributes:
        records: the last step records; any thread may read them.
        last_end: engine clock when the last step ended, seconds.
    """

    def __init__(self, card: ModelCard, config: EngineConfig) -> None:
        self.records: Ring[StepRecord] = Ring(RECORDS)
        self.last_end = 0.0
        self._card = card
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

    def scheduled(self, request: Request, now: float) -> None:
        """A request got its first slot."""
        request.timings.first_scheduled = now
        self._latencies.scheduled(request, now)

    def emitted(self, request: Request, now: float) -> None:
        """A request got an output token."""
        self._latencies.emitted(request, now)

    def ended(self, request: Request, knobs: Knobs, now: float) -> None:
        """A request ended; its reason and error are already set."""
        request.timings.finished = now
        name = {FinishReason.ABORT: "aborted", FinishReason.ERROR: "failed"}
        self._totals[name.get(request.finish_reason or FinishReason.ERROR, "finished")] += 1
        self._latencies.ended(request, knobs, now)
        self._ended.append(Sketch.of(request, None, now).finish())

    def stepped(self, record: StepRecord) -> None:
        self.records.append(record)
        self.last_end = record.end
        totals = self._totals
        totals["prefill_tokens"] += record.prefill_tokens
        totals["output_tokens"] += record.output_tokens
        totals["prefix_queried_tokens"] += record.prefix_queried_tokens
        totals["prefix_hit_tokens"] += record.prefix_hit_tokens
        totals["preemptions"] += len(record.preempted)
        totals["swaps"] += len(record.swapped)
        totals["evictions"] += len(record.blocks.blocks(BlockChange.EVICTED))

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
            knobs=ledger.states(scheduler.effective(ledger.knobs)),
            knob_history=ledger.history,
            latencies=self._latencies.copy(),
            comparison=self._comparison,
            totals=replace(Totals(), **self._totals),
            pins=pins,
            stalled=stalled,
        )
