from __future__ import annotations

from dataclasses import replace

import pytest

from engine.api.status import EnginePhase, EngineStatus, OffPath, QuantizationLoss
from engine.api.telemetry import Distribution
from tests.widgets.hosting import hosted, rows
from tests.widgets.samples import GOODPUT, LATENCY, MODEL, READY, history, knobs, snapshot
from widgets.glyphs import ASCII
from widgets.panels.gateway_readings import BrokerState
from widgets.panels.kpi_strip import KpiStrip

NARROW = " 47 tok/s    stall_free       TTFT 190ms  TPOT 21ms   run 6   wait 3     KV 65%"
WIDE = (
    " 47 tok/s    stall_free                    TTFT 190ms  TPOT 21ms   run 6   wait 3     "
    "KV ████░░ 65%           ▁▁▅█  preempted 3     prefill 6.1k tok/s"
)


@pytest.mark.parametrize(
    ("width", "text"),
    [(24, NARROW[:9]), (40, NARROW[:40]), (60, NARROW[:51]), (80, NARROW), (160, WIDE)],
)
async def test_what_matters_most_comes_first(width: int, text: str) -> None:
    strip = KpiStrip()
    async with hosted(strip, width, 1):
        for rate in (0.0, 1.0, 25.0, 47.0):
            strip.show(snapshot(), READY, rate, 6100.0)
        assert rows(strip) == [text]


async def test_bursts_show_in_the_course_and_not_in_the_figure() -> None:
    strip = KpiStrip()
    async with hosted(strip, 160, 1):
        for burst in (0.0, 600.0, 0.0, 600.0):
            strip.show(snapshot(), READY, 205.0, 6100.0, None, burst)
        (row,) = rows(strip)
        assert row.startswith(" 205 tok/s")
        assert " ▁█▁█ " in row


@pytest.mark.parametrize("width", [60, 80, 120, 160])
async def test_no_figure_moves_when_another_changes(width: int) -> None:
    """Neither the policy, nor large figures, nor what is wrong moves anything."""
    strip = KpiStrip()
    large = Distribution(9, 13.785, 13.785, 99.0)
    shown = [
        (snapshot(), 47.0, None),
        (snapshot(knobs=knobs(policy="static"), knob_history=history()), 0.0, None),
        (snapshot(num_running=812, num_waiting=2400), 12_804.0, None),
        (snapshot(latency=replace(LATENCY, ttft=large, tpot=large)), 3.1, None),
        (snapshot(latency=replace(LATENCY, ttft=Distribution.of(()))), 3.1, None),
        (snapshot(knobs=knobs(paused=True)), 0.0, BrokerState.OFFLINE),
    ]
    words = [word for word in ("TTFT", "TPOT", "run", "wait", "KV", "prefill") if word in WIDE]
    places = set()
    async with hosted(strip, width, 1):
        for state, rate, broker in shown:
            strip.show(state, READY, rate, 0.0, broker)
            (row,) = rows(strip)
            places.add(tuple(row.find(f" {word} ") for word in words))
    assert len(places) == 1
    assert max(places.pop()) > 0


async def test_one_figure_stands_out() -> None:
    strip = KpiStrip()
    async with hosted(strip, 160, 1):
        strip.show(snapshot(), READY, 47.0, 6100.0)
        bold = [s.text.strip() for s in strip.render_line(0) if s.style and s.style.bold]
        assert bold == ["47 tok/s"]


async def test_a_median_above_its_target_is_bad() -> None:
    strip = KpiStrip()
    async with hosted(strip, 80, 1):
        strip.show(snapshot(goodput=replace(GOODPUT, ttft_target=0.1)), READY, 47.0, 6100.0)
        bad = [s.text.strip() for s in strip.render_line(0) if s.style == strip.palette.bad]
        assert bad == ["190ms"]


async def test_without_samples_there_is_no_figure() -> None:
    strip, nothing = KpiStrip(), Distribution.of(())
    async with hosted(strip, 80, 1):
        strip.show(snapshot(latency=replace(LATENCY, ttft=nothing, tpot=nothing)), READY, 0.0, 0.0)
        assert "  TTFT –      TPOT –      run 6" in rows(strip)[0]


async def test_a_wide_strip_names_the_model() -> None:
    strip = KpiStrip()
    async with hosted(strip, 200, 1):
        strip.show(snapshot(), READY, 47.0, 6100.0)
        assert rows(strip)[0].endswith("  Qwen3-0.6B bfloat16 on cuda:0")


@pytest.mark.parametrize("switch", ["paused", "draining"])
async def test_an_engine_at_a_standstill_says_so(switch: str) -> None:
    strip = KpiStrip(ASCII)
    async with hosted(strip, 80, 1):
        strip.show(snapshot(knobs=knobs(**{switch: True})), READY, 0.0, 0.0)
        assert rows(strip)[0].startswith(f" 0 tok/s     = {switch}")


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (80, " 0 tok/s     ◐ 3 requests end before Qwen3-4B is loaded"),
        (40, " 0 tok/s     ◐ 3 requests end before Qw…"),
    ],
)
async def test_what_another_model_waits_for_takes_the_room(width: int, text: str) -> None:
    detail = "3 requests end before Qwen3-4B is loaded"
    strip = KpiStrip()
    async with hosted(strip, width, 1):
        strip.show(snapshot(), replace(READY, phase=EnginePhase.DRAINING, detail=detail), 0.0, 0.0)
        assert rows(strip) == [text]


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
        (120, True, "■ paused static→stall_free  "),
        (120, False, "static→stall_free  "),
        (80, True, "■ paused  "),
        (80, False, "→stall_free  "),
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
        strip.show(snapshot(knobs=tuple(turned)), READY, 0.0, 0.0)
        assert rows(strip)[0].startswith(f" 0 tok/s     {text}")


@pytest.mark.parametrize(
    ("broker", "sign"),
    [
        (None, "stall_free"),
        (BrokerState.ONLINE, "stall_free"),
        (BrokerState.CONNECTING, "◐ MQTT"),
        (BrokerState.OFFLINE, "✗ MQTT offline"),
        (BrokerState.TAKEN_OVER, "⇄ MQTT"),
    ],
)
async def test_a_broker_is_named_while_something_is_wrong_with_it(
    broker: BrokerState | None, sign: str
) -> None:
    strip = KpiStrip()
    async with hosted(strip, 60, 1):
        strip.show(snapshot(), READY, 0.0, 0.0, broker)
        assert rows(strip)[0].startswith(f" 0 tok/s     {sign}  ")
        strip.show(None, EngineStatus(EnginePhase.EMPTY), 0.0, 0.0, broker)
        said = f" {strip.glyphs.marks[broker.mark]} MQTT {broker} │" if "MQTT" in sign else ""
        assert rows(strip)[0] == f"{said} ○ no model"


@pytest.mark.parametrize(
    ("width", "told"),
    [
        (160, ""),
        (175, ""),
        (200, "Qwen3-0.6B bfloat16 on cpu, int8 98.9%"),
        (220, "Qwen3-0.6B bfloat16 on cpu, int8, 98.9% equal best"),
    ],
)
async def test_what_the_weights_were_quantized_to_stands_beside_the_model(
    width: int, told: str
) -> None:
    model = replace(MODEL, device="cpu", quantize="int8", loss=QuantizationLoss(256, 0.989, 0.001))
    strip = KpiStrip()
    async with hosted(strip, width, 1):
        strip.show(snapshot(model=model), READY, 47.0, 6100.0)
        (row,) = rows(strip)
        assert row.partition("tok/s")[2].partition("tok/s")[2].strip() == told


@pytest.mark.parametrize(
    ("width", "paused", "notice"),
    [
        (80, False, "◐ 25 ops off"),
        (160, False, "◐ 25 ops off kernels"),
        (80, True, "■ paused"),
        (160, True, "■ paused ◐ 25 ops off"),
    ],
)
async def test_operations_off_the_fast_path_are_named(
    width: int, paused: bool, notice: str
) -> None:
    mixer = OffPath("MambaMixer", 1024, 25, "no kernel of ours computes it")
    strip = KpiStrip()
    async with hosted(strip, width, 1):
        shown = snapshot(model=replace(MODEL, off_path=(mixer,)), knobs=knobs(paused=paused))
        strip.show(shown, READY, 47.0, 6100.0)
        (row,) = rows(strip)
        assert row.partition("tok/s")[2].partition("TTFT")[0].strip().startswith(notice)
        styles = {s.text.strip(): s.style for s in strip.render_line(0)}
        assert next(style for text, style in styles.items() if notice in text) == strip.palette.warn


async def test_a_model_off_the_kernels_is_marked_at_80_columns() -> None:
    strip = KpiStrip(ASCII)
    async with hosted(strip, 80, 1):
        model = replace(MODEL, off_kernels="sin in Layer is not read")
        strip.show(snapshot(model=model), READY, 47.0, 6100.0)
        assert " off kernels " in rows(strip)[0]
