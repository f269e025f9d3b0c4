"""A busy engine as plain data, the same at every run."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

from app.gateway.view import BadMessage, Rejection, UserView
from engine.api.config import EngineConfig
from engine.api.effect import Effect, Figures
from engine.api.knobs import KnobChange, Knobs, KnobState
from engine.api.lifecycle import FinishReason, RequestState
from engine.api.origin import Origin
from engine.api.snapshot import Goodput, LatencyView, RequestView, Snapshot, Totals
from engine.api.status import EnginePhase, EngineStatus, ModelCard
from engine.api.telemetry import (
    BlockChange,
    BlockEvents,
    Distribution,
    Ended,
    PhaseTimes,
    Samples,
    StepCost,
    StepRecord,
)
from engine.api.waiting import Cause, Wait
from engine.core.ledger import KnobLedger
from tests.widgets.pools import PINS, SHARING, block_map
from widgets.chat_number import ChatName, ChatNumber
from widgets.panels.chat_row import YOU, ChatRow
from widgets.panels.device_panel import DeviceReadings, GpuReading
from widgets.panels.gateway_readings import BrokerState, HttpReadings, HttpState, MqttReadings
from widgets.panels.log_line import Level, LogLine
from widgets.panels.session_columns import title_of

CONFIG = EngineConfig(
    num_blocks=2048, max_model_len=4096, max_num_seqs=32, max_num_batched_tokens=512
)
MODEL = ModelCard(
    name="Qwen3-0.6B",
    architecture="Qwen3ForCausalLM",
    num_params=596_049_920,
    dtype="bfloat16",
    device="cuda:0",
    attention="torch",
    max_model_len=4096,
    weight_bytes=1_192_099_840,
    kv_bytes_per_token=114_688,
)
READY = EngineStatus(EnginePhase.READY, "Qwen3-0.6B")
POLICIES = ("stall_free", "static", "dynamic")
# Every request is a chat, numbered as it came.
NAMES = {n: ChatName(ChatNumber(n), f"Chat {n}") for n in range(1, 100)}


def view(ordinal: int, **changes: object) -> RequestView:
    """A request that decodes, with some fields changed."""
    base = RequestView(
        request_id=f"req-{ordinal}",
        ordinal=ordinal,
        origin=Origin(title=f"Chat {ordinal}"),
        state=RequestState.RUNNING,
        prefilling=False,
        wait=None,
        priority=0,
        prompt_tokens=812,
        cached_tokens=64,
        computed_tokens=858,
        output_tokens=47,
        max_output_tokens=512,
        blocks=54,
        queue=0.002,
        ttft=0.184,
        tpot=0.0214,
        itl_p99=0.039,
        preemptions=0,
    )
    return replace(base, **changes)  # type: ignore[arg-type]  # tests name real fields


def waiting(ordinal: int, queue: float, reason: str, **changes: object) -> RequestView:
    """A request in the queue."""
    none: dict[str, object] = {
        "computed_tokens": 0,
        "output_tokens": 0,
        "blocks": 0,
        "ttft": None,
        "tpot": None,
        "itl_p99": None,
    }
    wait = Wait(Cause.POLICY, of=reason) if reason else None
    state = {"state": RequestState.WAITING, "queue": queue, "wait": wait}
    return view(ordinal, **{**none, **state, **changes})


def views() -> tuple[RequestView, ...]:
    """Requests in every state, in the order of a snapshot."""
    bot = Origin(user="fleet", source="mqtt", title="bot-7")
    decoding = (
        view(1, origin=Origin(title="Kafka essay")),
        view(4, origin=bot, ttft=0.203, tpot=0.022, itl_p99=0.040, output_tokens=310, blocks=70),
        view(8, origin=Origin(title="東京の天気"), ttft=0.61, tpot=0.0481, itl_p99=0.220),
        view(9, origin=Origin(title="A very long title of a very long chat"), preemptions=2),
        view(11, origin=Origin(title="Roman roads"), ttft=3.204, tpot=0.31, output_tokens=12_804),
    )
    prefill = waiting(
        2,
        0.041,
        "",
        state=RequestState.RUNNING,
        prefilling=True,
        blocks=9,
        origin=Origin(title="SQL help"),
    )
    return (*decoding, prefill, *queued(), *ended())


def chats(requests: Iterable[RequestView]) -> list[ChatRow]:
    """A row for each request, each of them a chat of its own."""

    def row(view: RequestView) -> ChatRow:
        source = YOU if view.origin.source == "screen" else view.origin.source
        name = ChatName(ChatNumber(view.ordinal), title_of(view))
        return ChatRow(view.request_id, name, source, view)

    return [row(view) for view in requests]


def queued() -> tuple[RequestView, ...]:
    """Requests that wait: one that was preempted, and two that have not begun."""
    return (
        waiting(
            6,
            0.120,
            "the pool just ran out of blocks",
            state=RequestState.PREEMPTED,
            origin=Origin(title="Haiku"),
            ttft=0.377,
            tpot=0.035,
            itl_p99=0.210,
            output_tokens=88,
            preemptions=1,
            host_blocks=7,
        ),
        waiting(
            12,
            0.612,
            "no blocks: it needs 51, 12 of 2048 are free for it",
            origin=Origin(user="alice", source="mqtt", title="bot-9"),
        ),
        waiting(13, 1.204, "behind 2 others", origin=Origin(title="Translate")),
    )


def ended() -> tuple[RequestView, ...]:
    """Requests that have ended: by themselves, by their owner, and by an error."""
    return (
        view(
            7,
            state=RequestState.FINISHED,
            finish_reason=FinishReason.STOP,
            origin=Origin(title="Rust borrow"),
            ttft=0.151,
            tpot=0.020,
            itl_p99=0.033,
            output_tokens=402,
            blocks=0,
        ),
        view(
            5,
            state=RequestState.FINISHED,
            finish_reason=FinishReason.ABORT,
            origin=Origin(title="Stopped one"),
            blocks=0,
        ),
        waiting(
            3,
            0.003,
            "",
            state=RequestState.FINISHED,
            finish_reason=FinishReason.ERROR,
            error="the logits of this request were not finite",
            origin=Origin(user="fleet", source="mqtt", title="bot-3"),
        ),
    )


def record(step: int, **changes: object) -> StepRecord:
    """A step of eight decodes and some prefill."""
    base = StepRecord(
        step=step,
        start=step * 0.012,
        turn_start=step * 0.012,
        end=step * 0.012 + 0.0118,
        plan=0.0004,
        commit=0.0001,
        times=PhaseTimes(prepare=0.0002, forward=0.0106, sample=0.0005),
        prefill_tokens=135,
        decode_tokens=8,
        prefill_rows=1,
        decode_rows=8,
        padding_tokens=0,
        bubble_tokens=0,
        output_tokens=9,
        budget=512,
        policy="stall_free",
        cost=StepCost(0, 0),
        running=9,
        waiting=3,
        head_wait=None,
        preempted=(),
        admitted=(),
        finished=(),
        prefix_queried_tokens=0,
        prefix_hit_tokens=0,
        blocks=BlockEvents(),
        free_blocks=120,
        cached_blocks=200,
        used_blocks=1728,
        given_slots=27_648,
        unused_slots=1_106,
    )
    return replace(base, **changes)  # type: ignore[arg-type]  # tests name real fields


def records(count: int = 120, last: int = 18_204) -> tuple[StepRecord, ...]:
    """Static batches with members that have ended, then, 60 steps before the end, waves of prefill
    on a floor of decodes; the budget is halved 30 steps before the end."""
    rng = random.Random(1)
    steps = []
    for step in range(last - count + 1, last + 1):
        budget = 512 if step <= last - 30 else 256
        wave = max(math.sin(step / 9), 0.0) * 560 + rng.randint(0, 60)
        decodes = 20 + round(12 * math.sin(step / 25))
        prefill = int(min(wave, budget - decodes)) if wave > 90 else 0
        static = step <= last - 60
        starts = static and step % 20 == 0
        steps.append(
            record(
                step,
                budget=budget,
                policy="static" if static else "stall_free",
                prefill_tokens=300 if starts else 0 if static else prefill,
                prefill_rows=8 if starts else 0 if static else 1 if prefill else 0,
                decode_tokens=0 if starts else 20 - step % 20 if static else decodes,
                decode_rows=0 if starts else 20 - step % 20 if static else decodes,
                padding_tokens=140 if starts else 0,
                bubble_tokens=step % 20 if static else 0,
            )
        )
    return tuple(steps)


def change(last: int = 18_204) -> KnobChange:
    before = Knobs()
    after = replace(before, max_num_batched_tokens=256)
    return KnobChange(last * 0.012, last - 30, "you", before, after)


def history(last: int = 18_204) -> tuple[KnobChange, ...]:
    """The policy, then the budget."""
    before = replace(Knobs(), policy="static")
    return (KnobChange((last - 60) * 0.012, last - 60, "you", before, Knobs()), change(last))


EFFECT = Effect(
    change(),
    Figures(
        310.0,
        Distribution(12, 0.2, 0.19, 0.64),
        Distribution(9, 0.02, 0.021, 0.05),
        Distribution(900, 0.02, 0.02, 0.3),
        6.1,
        0.12,
        9.0,
        Distribution(12, 800.0, 800.0, 900.0),
        30.0,
    ),
    Figures(
        402.0,
        Distribution(8, 0.2, 0.24, 0.30),
        Distribution(3, 0.02, 0.02, 0.02),
        Distribution(700, 0.02, 0.02, 0.06),
        8.0,
        0.03,
        11.0,
        Distribution(9, 700.0, 700.0, 900.0),
        21.0,
    ),
)


def knobs(**asked: object) -> tuple[KnobState, ...]:
    """The knobs, one of which is not in force as asked, and some of which are ignored."""
    ledger = KnobLedger(replace(Knobs(), max_num_seqs=8, **asked), CONFIG, POLICIES)  # type: ignore[arg-type]
    ignored = dict.fromkeys(
        (
            *("static_batch_size", "static_fill", "batch_window_ms"),
            *("waiting_served_ratio", "max_waiting_tokens"),
        ),
        "stall_free",
    )
    notes = {
        name: (getattr(ledger.knobs, name), f"ignored by {by}")
        for name, by in (*ignored.items(), ("user_weights", "priority"))
    }
    notes |= {
        "preemption": ("recompute", "no host memory is set aside for it (swap_memory)"),
        "max_num_seqs": (12, "4 more than requested still run"),
    }
    return ledger.states(notes)


def timed(values: Sequence[float], every: float, until: float = 873.0) -> Samples:
    """Samples that were taken one after the other, the last one at `until`."""
    samples = Samples()
    for place, value in enumerate(values):
        samples.add(until - (len(values) - 1 - place) * every, value)
    return samples


def wave(base: float, count: int) -> list[float]:
    return [base * (1.4 + math.sin(n / 3)) for n in range(count)]


LATENCY = LatencyView(
    60.0,
    Distribution(40, 0.21, 0.190, 0.640),
    Distribution(38, 0.022, 0.0212, 0.048),
    Distribution(4000, 0.021, 0.0203, 0.095),
    Distribution(40, 0.02, 0.003, 0.610),
    Distribution(38, 4.0, 3.2, 9.0),
    until=873.0,
    samples={
        "ttft": timed(wave(0.25, 40), 1.5),
        "tpot": timed(wave(0.02, 38), 1.5),
        "itl": timed(wave(0.02, 600), 0.1),
        "queue": timed(wave(0.1, 40), 1.5),
    },
)
GOODPUT = Goodput(60.0, ttft_target=0.45, tpot_target=0.05, share=0.94, rate=0.6)
TOTALS = Totals(
    requests=52,
    finished=30,
    output_tokens=9800,
    prefix_queried_tokens=42_000,
    prefix_hit_tokens=26_460,
    preemptions=3,
    evictions=212,
)


READINGS = DeviceReadings(
    cpu=1.4,
    cores=16,
    rss=3_221_225_472,
    memory_used=30_601_641_984,
    memory_total=137_438_953_472,
    gpus=(
        GpuReading(
            name="NVIDIA H100 80GB HBM3",
            utilization=0.87,
            memory_used=33_500_000_000,
            memory_total=85_520_809_984,
            power=312.0,
            temperature=61.0,
            clock=1980.0,
        ),
    ),
    loop_lag=0.007,
    frames=15.0,
)
# The model is cuda:0, which is the second for the driver.
SEVERAL_GPUS = replace(
    READINGS,
    gpus=(
        GpuReading(
            name="NVIDIA T4",
            uuid="GPU-1",
            utilization=0.12,
            memory_used=3_328_599_654,
            memory_total=16_106_127_360,
            power=21.0,
        ),
        replace(READINGS.gpus[0], uuid="GPU-2"),
        GpuReading(
            name="NVIDIA T4", uuid="GPU-3", utilization=None, memory_used=None, memory_total=None
        ),
    ),
)
MODEL_ON_SECOND_GPU = replace(MODEL, gpu_uuid="GPU-2")


def snapshot(**changes: object) -> Snapshot:
    base = Snapshot(
        time=873.0,
        step=18_204,
        config=CONFIG,
        model=MODEL,
        requests=views(),
        num_running=6,
        num_waiting=3,
        head_wait=Wait(Cause.BLOCKS, (51, 12, 2048)),
        blocks=block_map(),
        knobs=knobs(),
        knob_history=history(),
        latency=LATENCY,
        totals=TOTALS,
        sharing=SHARING,
        pins=PINS,
        goodput=GOODPUT,
    )
    return replace(base, **changes)  # type: ignore[arg-type]  # tests name real fields


NOON = 1_700_000_000.0  # 22:13:20 UTC


def log_lines() -> list[LogLine]:
    return [
        LogLine(NOON, Level.INFO, "sched", "admit req-5: 144 tok, 64 cached"),
        LogLine(NOON + 1, Level.WARNING, "sched", "preempt req-6: its blocks go to host memory"),
        LogLine(NOON + 1, Level.DEBUG, "cache", "evict 12 cached blk"),
        LogLine(NOON + 2, Level.ERROR, "mqtt", "bot-3: JSON decode error at column 17"),
        LogLine(NOON + 3, Level.INFO, "knob", "max_num_batched_tokens 512→256 by you"),
        LogLine(NOON + 4, Level.INFO, "sched", "finish req-7"),
    ]


EVENTFUL = record(
    41,
    start=5.0,
    end=5.1,
    preempted=("req-6",),
    admitted=("req-8", "req-9"),
    finished=(Ended("req-7", 1096, FinishReason.LENGTH),),
    prefix_queried_tokens=1500,
    prefix_hit_tokens=64,
    blocks=BlockEvents(((BlockChange.EVICTED, 3, -1), (BlockChange.EVICTED, 4, -1))),
)


MQTT = MqttReadings(
    address="mqtts://broker.example.org:8883",
    state=BrokerState.ONLINE,
    detail="",
    lasted=7_470.0,
    protocol="5",
    pool="default",
    node="gpu-1",
    received=12.4,
    sent=478.0,
    running=8,
    waiting=3,
    undelivered=0,
    accepted=1_234,
    finished=1_226,
    rejected=(Rejection(429, "over the quota", 12), Rejection(400, "not JSON", 2)),
    first_token=Distribution(40, 0.2, 0.190, 0.640),
    bad=(
        BadMessage(
            NOON,
            "llm/v1/default/req/fleet/bot-3/7",
            400,
            "the request is not JSON: Expecting value at column 17",
            '{"v":1,"messages":\x1b[2J \u202e[{"role":\n"user"}',
        ),
        BadMessage(NOON - 60, "llm/v1/default/req/東京/x/1", 413, "it has 300,000 bytes", "東京"),
    ),
    users=(
        UserView("fleet", 6, 3, 0),
        UserView("alice", 2, 0, 0),
        UserView("eve", 0, 0, 14),
    ),
)


HTTP = HttpReadings(
    address="http://127.0.0.1:8000",
    state=HttpState.SERVING,
    detail="",
    lasted=754.0,
    received=4.2,
    sent=3.8,
    running=16,
    waiting=2,
    connections=24,
    accepted=2_048,
    finished=2_032,
    rejected=(Rejection(401, "no key", 3), Rejection(429, "over the quota", 1)),
    first_token=Distribution(64, 0.05, 0.041, 0.120),
    bad=(
        BadMessage(
            NOON,
            "/v1/chat/completions",
            400,
            "temperature is -1; it should be greater than or equal to 0",
            '{"model":"default","temperature":-1}',
        ),
    ),
    users=(UserView("eval", 12, 2, 0), UserView("anonymous", 4, 0, 4)),
)
