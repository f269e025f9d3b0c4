"""Observer: watches one core. It takes step records, samples and counts, and gives snapshots."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import fields, replace

from engine.api.block_map import PinView, Sharing
from engine.api.config import EngineConfig
from engine.api.knobs import Knobs
from engine.api.lifecycle import FinishReason, RequestState
from engine.api.snapshot import Goodput, LatencyView, RequestView, Snapshot, Totals
from engine.api.status import ModelCard
from engine.api.telemetry import BlockChange, Distribution, Ring, Samples, StepRecord
from engine.api.waiting import Wait
from engine.batch.request import Request
from engine.core.ledger import KnobLedger
from engine.scheduling.scheduler import Scheduler

WINDOW = 60.0
RECORDS = 16_384
MAP_CELLS = 4_096
MAX_WAITING_VIEWS = 200
MAX_ENDED_VIEWS = 64
MAX_SHARING = 32


class Observer:
    """Telemetry of one loaded model, written by the engine thread.

    Attributes:
        records: the last step records; any thread may read them.
    """

    def __init__(self, card: ModelCard, config: EngineConfig) -> None:
        self.records: Ring[StepRecord] = Ring(RECORDS)
        self._card = card
        self._config = config
        self._totals = dict.fromkeys((f.name for f in fields(Totals)), 0)
        self._ttft, self._tpot, self._itl = Samples(), Samples(), Samples()
        self._queue, self._e2e, self._good = Samples(), Samples(), Samples()
        self._ended: deque[RequestView] = deque(maxlen=MAX_ENDED_VIEWS)

    def arrived(self, request: Request) -> None:
        self._totals["requests"] += 1
        self._totals["prompt_tokens"] += request.num_prompt_tokens

    def refused(self) -> None:
        self._totals["requests"] += 1
        self._totals["refused"] += 1

    def scheduled(self, request: Request, now: float) -> None:
        """A request got its first slot."""
        request.timings.first_scheduled = now
        self._queue.add(now, now - request.timings.arrival)

    def emitted(self, request: Request, now: float) -> None:
        """A request got an output token."""
        timings = request.timings
        if timings.first_token is None:
            timings.first_token = now
            self._ttft.add(now, now - timings.arrival)
        elif timings.last_token is not None:
            gap = now - timings.last_token
            request.token_gaps.append(gap)
            self._itl.add(now, gap)
        timings.last_token = now

    def ended(self, request: Request, knobs: Knobs, now: float) -> None:
        """A request ended; its reason and error are set already."""
        timings = request.timings
        timings.finished = now
        name = {FinishReason.ABORT: "aborted", FinishReason.ERROR: "failed"}
        self._totals[name.get(request.finish_reason or FinishReason.ERROR, "finished")] += 1
        if request.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._e2e.add(now, now - timings.arrival)
            tpot = timings.tpot(len(request.output_token_ids))
            if tpot is not None:
                self._tpot.add(now, tpot)
            self._good.add(now, _meets_targets(request, knobs))
        self._ended.append(_view(request, None, 0, now))

    def stepped(self, record: StepRecord) -> None:
        self.records.append(record)
        totals = self._totals
        totals["prefill_tokens"] += record.prefill_tokens
        totals["output_tokens"] += record.output_tokens
        totals["prefix_queried_tokens"] += record.prefix_queried_tokens
        totals["prefix_hit_tokens"] += record.prefix_hit_tokens
        totals["preemptions"] += len(record.preempted)
        totals["evictions"] += len(record.blocks.blocks(BlockChange.EVICTED))

    def snapshot(
        self, scheduler: Scheduler, ledger: KnobLedger, pins: tuple[PinView, ...], now: float
    ) -> Snapshot:
        """Everything a dashboard shows.

        Building it takes about 1 ms for 32 running requests and 2,048 blocks.
        """
        waiting = scheduler.waiting.head(MAX_WAITING_VIEWS)
        sharing = Counter(map(tuple, scheduler.cache.pool.sharing()))
        shared: Counter[int] = Counter()
        for ordinals, blocks in sharing.items():
            for ordinal in ordinals:
                shared[ordinal] += blocks
        views = [
            _view(request, None, shared[request.ordinal], now) for request in scheduler.running
        ]
        views += [
            _view(request, scheduler.wait_at(position), 0, now)
            for position, request in enumerate(waiting)
        ]
        views += reversed(self._ended)
        since = now - WINDOW
        # A long reply may run for minutes. Its speed counts while it runs, not only at its end.
        running = (r.timings.tpot(len(r.output_token_ids)) for r in scheduler.running)
        tpot = self._tpot.over(since, (mean for mean in running if mean is not None))
        return Snapshot(
            time=now,
            step=self.records.total,
            config=self._config,
            model=self._card,
            requests=tuple(views),
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            head_wait=scheduler.head_wait,
            blocks=scheduler.cache.pool.map(MAP_CELLS),
            knobs=ledger.states(scheduler.effective(ledger.knobs)),
            knob_history=ledger.history,
            latency=LatencyView(
                WINDOW,
                self._ttft.over(since),
                tpot,
                self._itl.over(since),
                self._queue.over(since),
                self._e2e.over(since),
            ),
            totals=replace(Totals(), **self._totals),
            sharing=tuple(
                Sharing(tuple(sorted(ordinals)), blocks)
                for ordinals, blocks in sharing.most_common(MAX_SHARING)
            ),
            pins=pins,
            goodput=self._goodput(ledger.knobs, since),
        )

    def _goodput(self, knobs: Knobs, since: float) -> Goodput:
        good = self._good.over(since)
        return Goodput(
            WINDOW,
            knobs.ttft_target_ms / 1000,
            knobs.tpot_target_ms / 1000,
            good.mean,
            good.mean * good.count / WINDOW if good.count else 0.0,
        )


def _meets_targets(request: Request, knobs: Knobs) -> bool:
    """Whether both latencies met their targets. A request of one output token has no TPOT, and is
    judged by its TTFT alone.
    """
    ttft = request.timings.ttft
    tpot = request.timings.tpot(len(request.output_token_ids)) or 0.0
    return (
        ttft is not None
        and ttft * 1000 <= knobs.ttft_target_ms
        and tpot * 1000 <= knobs.tpot_target_ms
    )


def _view(request: Request, wait: Wait | None, shared_blocks: int, now: float) -> RequestView:
    timings = request.timings
    waits = request.state in (RequestState.WAITING, RequestState.PREEMPTED)
    gaps = Distribution.of(request.token_gaps)
    return RequestView(
        request_id=request.request_id,
        ordinal=request.ordinal,
        origin=request.origin,
        state=request.state,
        prefilling=request.state is RequestState.RUNNING and request.is_prefill,
        wait=wait,
        priority=request.priority,
        prompt_tokens=request.num_prompt_tokens,
        cached_tokens=request.num_cached_tokens,
        computed_tokens=request.num_computed_tokens,
        output_tokens=len(request.output_token_ids),
        max_output_tokens=request.max_output_tokens,
        blocks=len(request.block_table) + len(request.reserved_blocks),
        reserved_blocks=len(request.reserved_blocks),
        shared_blocks=shared_blocks,
        queue=now - timings.arrival if waits and timings.queue is None else timings.queue,
        ttft=timings.ttft,
        tpot=timings.tpot(len(request.output_token_ids)),
        itl_p99=gaps.p99 if gaps.count else None,
        preemptions=request.num_preemptions,
        finish_reason=request.finish_reason,
        error=request.error.message if request.error else "",
    )
