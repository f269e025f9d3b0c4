"""Draft: data copied from a core between two steps, from which a reader computes a snapshot."""

from __future__ import annotations

import math
import threading
from array import array
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial

from engine.api.block_map import PinView, Sharing
from engine.api.config import EngineConfig
from engine.api.knobs import KnobChange, Knobs, KnobState
from engine.api.lifecycle import RequestState
from engine.api.snapshot import Goodput, LatencyView, RequestView, Snapshot, Totals
from engine.api.status import ModelCard
from engine.api.telemetry import Distribution
from engine.api.waiting import Wait
from engine.batch.plan import Request
from engine.cache.pool_copy import PoolCopy
from engine.core.comparison import Comparison
from engine.core.latencies import Latencies, Underway

MAX_SEGMENTS = 2_048
MAX_SHARING = 32
# Minimum seconds between two updates of the windows, because each takes some milliseconds.
AGEING_SECONDS = 1.0
# Output tokens before a running reply's speed counts. The mean of the first two or three measures
# the prompts computed between them: p99 was 223 to 748 ms where clients measured 77 to 321.
STEADY_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Sketch:
    """A request's view with some fields still to compute.

    Attributes:
        view: called with the missing fields.
        tpot: None before `STEADY_TOKENS` tokens.
        gaps: between the tokens of the request, in seconds.
    """

    view: partial[RequestView]
    ordinal: int
    tpot: float | None
    gaps: array[float]

    @staticmethod
    def of(request: Request, wait: Wait | None, now: float) -> Sketch:
        timings = request.timings
        tpot = timings.tpot(len(request.output_token_ids))
        waits = request.state in (RequestState.WAITING, RequestState.PREEMPTED)
        view = partial(
            RequestView,
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
            host_blocks=len(request.host_blocks),
            queue=now - timings.arrival if waits and timings.queue is None else timings.queue,
            ttft=timings.ttft,
            tpot=tpot,
            preemptions=request.num_preemptions,
            finish_reason=request.finish_reason,
            error=request.error.message if request.error else "",
        )
        steady = tpot if len(request.output_token_ids) >= STEADY_TOKENS else None
        return Sketch(view, request.ordinal, steady, request.token_gaps.last())

    def finish(self, shared_blocks: int = 0) -> RequestView:
        """Compute the missing fields, which take time, and return the view."""
        p99 = Distribution.of(self.gaps).p99 if self.gaps else None
        return self.view(shared_blocks=shared_blocks, itl_p99=p99)


@dataclass(slots=True, eq=False, kw_only=True)
class Draft:
    """A core between two steps.

    A device waits while the engine's thread reads the core, so that thread only copies: 0.2 ms for
    64 running requests, each 300 tokens on, and 65,000 blocks. Percentiles and the segments of the
    map then take 7 ms. The first reader of the snapshot computes them, in a thread that may be
    interrupted.

    Attributes:
        running, waiting, ended: requests, as `Snapshot.requests` has them.
        underway: the times of requests that have not ended.
    """

    time: float
    step: int
    config: EngineConfig
    model: ModelCard
    running: list[Sketch]
    waiting: list[Sketch]
    ended: list[RequestView]
    underway: list[Underway]
    num_waiting: int
    head_wait: Wait | None
    pool: PoolCopy
    requested: Knobs
    knobs: tuple[KnobState, ...]
    knob_history: tuple[KnobChange, ...]
    latencies: Latencies
    comparison: Comparison
    totals: Totals
    pins: tuple[PinView, ...]
    stalled: bool
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _snapshot: Snapshot | None = None

    def snapshot(self, now: float) -> Snapshot:
        """The snapshot, the same at every call except for latencies and goodput: their windows end
        at `now` as long as they have samples. Any thread may call this.

        Args:
            now: the reader's time on the engine's clock.
        """
        with self._lock:
            shown = self._snapshot
            if shown is None:
                shown = self._finish(now)
            elif now >= shown.latency.until + AGEING_SECONDS and self._ages(shown):
                latency, goodput = self._measured(now)
                shown = replace(shown, latency=latency, goodput=goodput)
            self._snapshot = shown
            return shown

    def _ages(self, shown: Snapshot) -> bool:
        """Whether latencies or goodput depend on the reader's time, so that they must be computed
        again."""
        view = shown.latency
        seen = (view.ttft, view.tpot, view.itl, view.queue, view.e2e)
        judged = shown.goodput is not None and not math.isnan(shown.goodput.share)
        return judged or bool(self.underway) or any(of.count for of in seen)

    def _measured(self, now: float) -> tuple[LatencyView, Goodput]:
        """Latencies and goodput of the windows that end at `now`."""
        tpots = [sketch.tpot for sketch in self.running if sketch.tpot is not None]
        # Tokens may have come since, soon in a new draft; if none is made, requests may be late.
        judged = now if now >= self.time + AGEING_SECONDS else self.time
        goodput = self.latencies.goodput(judged, self.requested, self.underway)
        return self.latencies.view(now, tpots), goodput

    def _finish(self, now: float) -> Snapshot:
        sharing = Counter(self.pool.holders.values())
        shared: Counter[int] = Counter()
        for ordinals, blocks in sharing.items():
            for ordinal in ordinals:
                shared[ordinal] += blocks
        views = [sketch.finish(shared[sketch.ordinal]) for sketch in self.running]
        views += [sketch.finish() for sketch in self.waiting]
        latency, goodput = self._measured(now)
        return Snapshot(
            time=self.time,
            step=self.step,
            config=self.config,
            model=self.model,
            requests=(*views, *self.ended),
            num_running=len(self.running),
            num_waiting=self.num_waiting,
            head_wait=self.head_wait,
            blocks=self.pool.map(MAX_SEGMENTS),
            knobs=self.knobs,
            knob_history=self.knob_history,
            latency=latency,
            totals=self.totals,
            sharing=tuple(
                Sharing(tuple(sorted(ordinals)), blocks)
                for ordinals, blocks in sharing.most_common(MAX_SHARING)
            ),
            pins=self.pins,
            goodput=goodput,
            stalled=self.stalled,
            effect=self.comparison.effect(self.knob_history, self.latencies, self.time),
        )
