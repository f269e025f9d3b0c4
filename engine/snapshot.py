"""Snapshot: the engine at one moment, as immutable plain data, built at the reader's cadence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from engine.config import EngineConfig
from engine.ledger import KnobChange, KnobState
from engine.request import FinishReason, Origin, RequestState
from engine.telemetry import Distribution


class EnginePhase(StrEnum):
    """Where the engine as a whole stands."""

    EMPTY = "empty"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """The engine as a whole; available at any moment, also before a model is there.

    Attributes:
        model: name of the model that is loaded or being loaded.
        detail: what is being done, or why it failed: one sentence.
        loaded_bytes, total_bytes: exact progress of loading weights.
    """

    phase: EnginePhase
    model: str = ""
    detail: str = ""
    loaded_bytes: int = 0
    total_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The loaded model, for people."""

    name: str
    architecture: str
    num_params: int
    dtype: str
    device: str
    attention: str
    max_model_len: int
    weight_bytes: int
    kv_bytes_per_token: int


class BlockState(StrEnum):
    """State of a block; its value is its letter in `BlockMap.states`.

    Reserved: set aside for a request's tokens to come. Pinned: without holder, and never evicted.
    """

    FREE = "f"
    CACHED = "c"
    USED = "u"
    SHARED = "s"
    RESERVED = "r"
    PINNED = "p"


@dataclass(frozen=True, slots=True)
class BlockMap:
    """The pool, aggregated: one cell stands for `blocks_per_cell` neighbouring blocks.

    Attributes:
        states: a `BlockState` letter a cell: the most frequent state in it, of ties the busiest.
        owners: for each cell the ordinal of a sequence that holds the first block in the state
            shown, or -1.
        free, cached, used: their sum is `num_blocks`.
        shared, reserved: among the used.
        pinned: among the cached.
    """

    num_blocks: int
    blocks_per_cell: int
    states: str
    owners: tuple[int, ...]
    free: int
    cached: int
    used: int
    shared: int
    reserved: int = 0
    pinned: int = 0


@dataclass(frozen=True, slots=True)
class Sharing:
    """Blocks that the same requests share.

    Attributes:
        ordinals: of the requests that hold them, in order of arrival.
    """

    ordinals: tuple[int, ...]
    blocks: int


@dataclass(frozen=True, slots=True)
class PinView:
    """A prefix that is never evicted.

    Attributes:
        tokens: of the prefix, its last partial block included.
        blocks: full blocks of it.
        computed: those that are in the pool.
        error: why it is not kept; empty if it is.
    """

    name: str
    tokens: int
    blocks: int
    computed: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests that met both latency targets, of those that ended in the last `window` seconds.

    Attributes:
        share: of those that ended; NaN if none did.
        rate: a second.
    """

    window: float
    ttft_target: float
    tpot_target: float
    share: float
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """One request as the dashboard shows it. Times in seconds; None where not known yet.

    Attributes:
        ordinal: order of arrival in this engine, as `BlockMap.owners` names it.
        wait_reason: why it waits; empty when it does not.
        tpot: mean so far while running, final afterwards.
        itl_p99: 99th percentile of the gaps between its own tokens.
        blocks: that it holds, reserved and shared ones among them.
    """

    request_id: str
    ordinal: int
    origin: Origin
    state: RequestState
    prefilling: bool
    wait_reason: str
    priority: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    output_tokens: int
    max_output_tokens: int
    blocks: int
    reserved_blocks: int = 0
    shared_blocks: int = 0
    queue: float | None
    ttft: float | None
    tpot: float | None
    itl_p99: float | None
    preemptions: int
    finish_reason: FinishReason | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class LatencyView:
    """Distributions over the last `window` seconds, in seconds, of 8,192 samples at most each.

    Attributes:
        tpot: of requests that ended, and of those that run the mean so far.
        e2e: of requests that ended.
    """

    window: float
    ttft: Distribution
    tpot: Distribution
    itl: Distribution
    queue: Distribution
    e2e: Distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counters since the model was loaded."""

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
    evictions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The engine between two steps.

    Attributes:
        time: engine clock, seconds.
        step: number of the last step.
        requests: running ones, the head of the queue, then those that ended last; capped.
        num_waiting: all waiting requests, also those beyond the cap.
        sharing: who shares how many blocks, most blocks first; capped.
        pins: prefixes that are never evicted.
        stalled: whether requests wait and nothing will move them but a knob or another request;
            `waiting_reason` says why.
    """

    time: float
    step: int
    config: EngineConfig
    model: ModelCard
    requests: tuple[RequestView, ...]
    num_running: int
    num_waiting: int
    waiting_reason: str
    blocks: BlockMap
    knobs: tuple[KnobState, ...]
    knob_history: tuple[KnobChange, ...]
    latency: LatencyView
    totals: Totals
    sharing: tuple[Sharing, ...] = ()
    pins: tuple[PinView, ...] = ()
    goodput: Goodput | None = None
    stalled: bool = False
