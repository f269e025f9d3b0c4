"""Snapshot: the engine at one moment, as immutable plain data, built when a reader asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.api.block_map import BlockMap, PinView, Sharing
from engine.api.config import EngineConfig
from engine.api.effect import Effect
from engine.api.knobs import KnobChange, KnobState
from engine.api.lifecycle import FinishReason, RequestState
from engine.api.origin import Origin
from engine.api.status import ModelCard
from engine.api.telemetry import Distribution, Samples
from engine.api.waiting import Wait


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests that met both latency targets, among those that ended in the last `window` seconds
    and unfinished ones that already miss a target.

    Attributes:
        share: the share of good requests; NaN without requests.
        rate: good requests a second.
        late: how many unfinished requests already miss a target.
    """

    window: float
    ttft_target: float
    tpot_target: float
    share: float
    rate: float
    late: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """One request as the dashboard shows it. Times are in seconds; None if not known yet.

    Attributes:
        ordinal: number in the order of arrival in this engine, as in `BlockSegment.holders`.
        wait: why it waits; None if it does not.
        tpot: the mean so far while it runs, then the final one.
        itl_p99: 99th percentile of the gaps between its own tokens.
        blocks: how many it holds, including reserved and shared ones.
        host_blocks: how many hold its computed tokens while it is swapped out.
    """

    request_id: str
    ordinal: int
    origin: Origin
    state: RequestState
    prefilling: bool
    wait: Wait | None
    priority: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    output_tokens: int
    max_output_tokens: int
    blocks: int
    reserved_blocks: int = 0
    shared_blocks: int = 0
    host_blocks: int = 0
    queue: float | None
    ttft: float | None
    tpot: float | None
    itl_p99: float | None
    preemptions: int
    finish_reason: FinishReason | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class LatencyView:
    """Distributions over the last `window` seconds, in seconds, of at most 8,192 samples each.

    Attributes:
        tpot: of ended requests, and the means so far of running ones with 8 tokens or more.
        e2e: of ended requests.
        until: end of the window on the engine's clock: when the snapshot was requested.
        samples: samples behind the distributions, by name, including older ones; they no longer
            change.
    """

    window: float
    ttft: Distribution
    tpot: Distribution
    itl: Distribution
    queue: Distribution
    e2e: Distribution
    until: float = 0.0
    samples: Mapping[str, Samples] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counters since the model was loaded.

    Attributes:
        swaps: preemptions with a swap; the other victims are recomputed.
    """

    requests: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    prefill_tokens: int = 0
    output_tokens: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    swaps: int = 0
    evictions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The engine between two steps.

    Attributes:
        time: engine clock, seconds. `latency` and `goodput` are as of the request for the snapshot,
            because an idle engine makes no newer one.
        step: number of the last step.
        requests: the running ones, the head of the queue, then the last ended ones. The numbers of
            waiting and ended ones are capped.
        num_waiting: how many requests wait, including those beyond the cap.
        head_wait: why the first of them waits; None if none does.
        sharing: numbers of blocks shared by the same requests, most first; capped.
        pins: prefixes that are never evicted.
        stalled: whether waiting requests need a knob change or another request to move; `head_wait`
            says why.
        effect: the effect of the last change of knobs; None if there was none.
    """

    time: float
    step: int
    config: EngineConfig
    model: ModelCard
    requests: tuple[RequestView, ...]
    num_running: int
    num_waiting: int
    head_wait: Wait | None
    blocks: BlockMap
    knobs: tuple[KnobState, ...]
    knob_history: tuple[KnobChange, ...]
    latency: LatencyView
    totals: Totals
    sharing: tuple[Sharing, ...] = ()
    pins: tuple[PinView, ...] = ()
    goodput: Goodput | None = None
    stalled: bool = False
    effect: Effect | None = None
