from __future__ import annotations

from dataclasses import replace

import pytest

from engine.api.status import EnginePhase, EngineStatus
from tests.widgets.hosting import hosted, rows
from tests.widgets.samples import READY, knobs, snapshot
from widgets.glyphs import ASCII
from widgets.panels.broker_state import BrokerState
from widgets.panels.kpi_strip import KpiStrip

LATENCY = " ttft 190ms  tpot 21.2ms"
COUNTS = " │ run 6 wait 3 pre 3"


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (24, LATENCY),
        (50, LATENCY + COUNTS),
        (60, LATENCY + COUNTS + " │ KV ███░░ 65%"),
        (80, LATENCY + COUNTS + " │ KV ██████░░░░ 65% │ 47 tok/s ▁▅█"),
        (
            120,
            LATENCY + COUNTS + " │ KV ██████░░░░ 65% │ 47 tok/s         ▁▁▅█ │ policy stall_free",
        ),
    ],
)
async def test_what_matters_most_comes_first(width: int, text: str) -> None:
    strip = KpiStrip()
    async with hosted(strip, width, 1):
        for rate in (0.0, 1.0, 25.0, 47.0):
            strip.show(snapshot(knob_history=()), READY, rate, 6100.0)
        assert rows(strip) == [text]


async def test_a_wide_strip_names_the_model() -> None:
    strip = KpiStrip()
    async with hosted(strip, 170, 1):
        strip.show(snapshot(), READY, 47.0, 6100.0)
        assert rows(strip)[0].endswith(" │ Qwen3-0.6B bfloat16 on cuda:0")


@pytest.mark.parametrize("switch", ["paused", "draining"])
async def test_an_engine_at_a_standstill_says_so_first(switch: str) -> None:
    strip = KpiStrip(ASCII)
    async with hosted(strip, 80, 1):
        strip.show(snapshot(knobs=knobs(**{switch: True})), READY, 0.0, 0.0)
        assert rows(strip)[0].startswith(f" = {switch} | ttft 190ms")


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (80, f" ◐ 3 requests end before Qwen3-4B is loaded │{LATENCY}"),
        (30, " ◐ 3 requests end before Qwen…"),
    ],
)
async def test_what_another_model_waits_for_stands_first(width: int, text: str) -> None:
    detail = "3 requests end before Qwen3-4B is loaded"
    strip = KpiStrip()
    async with hosted(strip, width, 1):
        strip.show(snapshot(), replace(READY, phase=EnginePhase.DRAINING, detail=detail), 0.0, 0.0)
        assert rows(strip)[0].startswith(text)


LOADING = EngineStatus(
    EnginePhase.LOADING, "Qwen3-0.6B", "reading weights", 123_000_000, 400_000_000
)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (EngineStatus(EnginePhase.EMPTY), " ○ no model"),
        (
            LOADING,
            " ◐ loading Qwen3-0.6B  █████████░░░░░░░░░░░░░░░░░░░░░ 117/381 MiB  reading weights",
        ),
        (replace(LOADING, total_bytes=0), " ◐ loading Qwen3-0.6B  reading weights"),
        (
            EngineStatus(EnginePhase.FAILED, "Qwen3-0.6B", "it needs 12 GiB and 8 GiB are free"),
            " ✗ failed  Qwen3-0.6B: it needs 12 GiB and 8 GiB are free",
        ),
        (EngineStatus(EnginePhase.STOPPED), " ○ stopped"),
        (EngineStatus(EnginePhase.READY, "Qwen3-0.6B"), " ○ ready  Qwen3-0.6B"),
    ],
)
async def test_an_engine_without_a_model(status: EngineStatus, text: str) -> None:
    strip = KpiStrip()
    async with hosted(strip, 90, 1):
        strip.show(None, status, 0.0, 0.0)
        assert rows(strip) == [text]


async def test_progress_of_loading_shrinks_with_the_strip() -> None:
    strip = KpiStrip()
    async with hosted(strip, 44, 1):
        strip.show(None, LOADING, 0.0, 0.0)
        assert rows(strip) == [" ◐ loading Qwen3-0.6B  ██░░░░░ 117/381 MiB"]


async def test_while_another_model_loads_the_old_figures_are_gone() -> None:
    strip = KpiStrip()
    async with hosted(strip, 80, 1):
        strip.show(snapshot(), LOADING, 47.0, 0.0)
        assert rows(strip)[0].startswith(" ◐ loading Qwen3-0.6B ")


@pytest.mark.parametrize(
    ("width", "paused", "text"),
    [
        (120, True, " │ policy static→stall_free on resume │ run 6 wait 3 pre 3 │"),
        (80, True, " │ policy static→stall_free on resume"),
        (70, True, " │ policy static→stall_free"),
        (54, True, " │ →stall_free"),
        (80, False, " │ policy static→stall_free │ run 6 wait 3 pre 3"),
    ],
)
async def test_a_policy_to_come_stands_beside_the_one_in_force(
    width: int, paused: bool, text: str
) -> None:
    turned = [
        replace(k, effective="static", note="takes effect with the next step")
        if k.name == "policy"
        else k
        for k in knobs(paused=paused)
    ]
    strip = KpiStrip()
    async with hosted(strip, width, 1):
        strip.show(snapshot(knobs=tuple(turned), knob_history=()), READY, 0.0, 0.0)
        start = " ■ paused │" if paused else ""
        row = rows(strip)[0]
        assert row.startswith(f"{start}{LATENCY}{text}")
        assert row.count("policy") == text.count("policy")


async def test_a_policy_that_was_changed_is_seen_in_a_narrow_strip() -> None:
    strip = KpiStrip()
    async with hosted(strip, 80, 1):
        for shown in (snapshot(), snapshot(knobs=knobs(policy="static"), knob_history=())):
            strip.show(shown, READY, 0.0, 0.0)
            policy = shown.knobs[0].effective
            assert rows(strip)[0].startswith(f"{LATENCY} │ policy {policy}{COUNTS}")


@pytest.mark.parametrize(
    ("broker", "sign"),
    [
        (None, ""),
        (BrokerState.ONLINE, ""),
        (BrokerState.CONNECTING, " ◐ MQTT connecting │"),
        (BrokerState.OFFLINE, " ✗ MQTT offline │"),
        (BrokerState.TAKEN_OVER, " ⇄ MQTT taken over │"),
    ],
)
async def test_a_broker_is_named_while_something_is_wrong_with_it(
    broker: BrokerState | None, sign: str
) -> None:
    strip = KpiStrip()
    async with hosted(strip, 60, 1):
        strip.show(snapshot(knob_history=()), READY, 0.0, 0.0, broker)
        assert rows(strip)[0].startswith(sign + LATENCY)
        strip.show(None, EngineStatus(EnginePhase.EMPTY), 0.0, 0.0, broker)
        assert rows(strip)[0] == f"{sign} ○ no model"
