"""`tui simulate`, as a person calls it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat
from pathlib import Path

import pytest

from app.bench.lengths import Fixed
from app.bench.measurement import Measurement
from app.bench.options import SimulateOptions
from app.bench.scripts import Synthetic
from app.bench.simulate import parse_rates, run
from app.bench.sweep import Curve, Point, Sweep
from app.bench.testbed import in_virtual_time
from app.bench.traffic import ScriptedTraffic
from app.process.exits import ExitCode
from app.process.serving import ModelLoadError
from app.settings.settings import SettingsError
from engine.api.config import EngineConfig
from engine.api.knobs import Knobs
from engine.batch.plan import StepPlan
from engine.driving.drive import drive
from engine.simulation.records import Recording
from engine.simulation.shapes import named_shape

SMALL = SimulateOptions(
    requests=60, rate="8,64,512", output_len="uniform:8:32", policy="stall_free"
)


class OneSecond:
    def seconds(self, plan: StepPlan) -> float:
        return 1.0

    def seconds_ahead(self, plan: StepPlan) -> Iterator[float]:
        return repeat(1.0)


def sweep(rates: list[float], count: int = 400) -> Curve:
    """Steps of a second, ten slots, ten tokens each: one request a second is the most."""
    config = EngineConfig(num_blocks=1000, max_model_len=100)
    testbed = in_virtual_time(config, named_shape("387m"), OneSecond(), {})
    knobs = replace(Knobs(), max_num_seqs=10, queue_limit=10_000)
    wanted = Sweep(
        workload=Synthetic(num_prompts=count, input_len=Fixed(8), output_len=Fixed(10)),
        rates=rates,
        knobs={"stall_free": knobs},
        targets={"ttft": 5000.0},
    )
    (curve,) = wanted.run(testbed, lambda what: None, lambda: None)
    return curve


def point(rate: float, kept_up: float, attained: float) -> Point:
    return Point(rate, rate * kept_up, kept_up, 0.0, attained, {}, rate, 0)


def test_a_sweep_finds_where_the_engine_stops_keeping_up() -> None:
    curve = sweep([0.25, 0.5, 2.0, 4.0, 1024.0])
    below, half, *above = curve.points
    assert below.served == pytest.approx(0.25, rel=0.15)
    assert half.kept_up == pytest.approx(1.0, abs=0.05)
    for over in above:  # throughput does not fall with the rate
        assert over.served == pytest.approx(1.0, rel=0.03)
        assert over.output == pytest.approx(10.0, rel=0.03)
        assert over.attained < 0.2
        assert over.goodput == over.served * over.attained
    assert curve.points[-1].kept_up < 0.01
    assert [point.needs for point in above] == [0] * 3
    assert curve.knee is half
    assert curve.capacity is half


def test_a_run_too_short_is_marked_with_the_requests_that_it_needs() -> None:
    (short,) = sweep([1024.0], 30).points
    assert short.needs > 30
    assert 0.5 < short.served < 1.0  # of all of it, with what drains
    (enough,) = sweep([1024.0], short.needs).points
    assert enough.needs == 0
    assert enough.served == pytest.approx(1.0, rel=0.05)


def test_what_the_table_says_of_a_short_run_and_of_the_end_of_the_range(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(replace(SMALL, rate="0.5,1"))
    text = capsys.readouterr().out
    assert "keeps up with every rate given; its knee is above 1/s" in text
    assert "(the knee)" not in text
    assert "at every rate given" in text
    assert "?" not in text
    run(replace(SMALL, rate="1,4096"))
    text = capsys.readouterr().out
    assert "keeps up to 1/s at least; the run at 4096/s is too short to tell" in text
    (row,) = (line for line in text.splitlines() if line.startswith("stall_free  4096"))
    assert row.split()[3 if "(" in row else 2].endswith("?")
    assert row.endswith("100%?")
    assert "at every rate given, as far as so short a run can show" in text
    assert "--requests are needed: 4096/s " in text


def test_the_rate_that_requests_came_at_is_shown_where_it_is_another(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "sweep.json"
    run(replace(SMALL, rate="0.5", json_file=file))
    arrived = json.loads(file.read_text())["policies"][0]["points"][0]["arrived"]
    assert abs(arrived / 0.5 - 1) > 0.02
    assert f"0.5 ({arrived:.3g})" in capsys.readouterr().out
    run(replace(SMALL, rate="0.5", burstiness=math.inf))
    assert "0.5 (" not in capsys.readouterr().out


def test_the_knee_is_before_the_first_rate_that_is_not_kept_up_with() -> None:
    points = [point(1, 1.0, 1.0), point(2, 0.91, 0.8), point(4, 0.5, 0.95), point(8, 0.95, 1.0)]
    curve = Curve("p", points)
    assert curve.knee is points[1]
    assert curve.capacity is points[0]
    assert Curve("p", points[2:]).knee is None
    assert Curve("p", points[1:]).capacity is None


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("1:64:x2", [1, 2, 4, 8, 16, 32, 64]),
        ("1:10:x3", [1, 3, 9]),
        ("0.1:0.5:+0.1", [0.1, 0.2, 0.3, 0.4, 0.5]),
        ("5", [5]),
        ("1, 2.5,10", [1, 2.5, 10]),
    ],
)
def test_rates(text: str, rates: list[float]) -> None:
    assert parse_rates(text) == pytest.approx(rates)


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "0", "-1", "inf", "nan", "2,1", "1,1", "1:2", "1:8:2", "1:8:x1", "1:8:+0"),
        *("8:1:x2", "1:8:x2:3", "0:8:x2", "1:1e9:+1", "1:inf:x2", "1:8:-1", "1:8:"),
    ],
)
def test_other_rates_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"^--rate: it is .*LOW:HIGH:xK"):
        parse_rates(text)


def test_it_prints_a_table_the_knee_and_charts(capsys: pytest.CaptureFixture[str]) -> None:
    options = replace(SMALL, policy="stall_free,prefill_first", requests=300)
    assert run(replace(options, knob=["max_num_seqs=4"])) == ExitCode.OK
    output = capsys.readouterr().out
    rows = [
        line.split()[:2] for line in output.splitlines() if line.startswith(("stall", "prefill"))
    ]
    assert rows[:6] == [[p, r] for p in ("stall_free", "prefill_first") for r in ("8", "64", "512")]
    assert "llama-8b on h100" in output
    assert "stall_free: keeps up to 8/s (the knee)" in output
    assert "meet TTFT 1000 ms and TPOT 100 ms" in output
    for title in ("Output throughput", "Time to first token, p99", "Time per output token, p99"):
        assert title in output
    assert "knee" in output.split("Output throughput")[1]


def test_the_same_seed_gives_the_same_file(tmp_path: Path) -> None:
    def written(seed: int) -> bytes:
        path = tmp_path / "results.json"
        run(replace(SMALL, rate="64", seed=seed, json_file=path))
        return path.read_bytes()

    assert written(1) == written(1)
    assert written(1) != written(2)


def test_the_file_holds_every_figure(tmp_path: Path) -> None:
    path, charts = tmp_path / "results.json", tmp_path / "charts"
    run(replace(SMALL, knob=["max_num_seqs=16"], json_file=path, svg=charts, ttft_target=50.0))
    results = json.loads(path.read_text())
    assert results["goodput_targets_ms"] == {"ttft": 50.0, "tpot": 100.0}
    assert results["about"]["device"]["name"] == "h100"
    (policy,) = results["policies"]
    assert policy["knobs"]["max_num_seqs"] == 16
    assert policy["knobs"]["ttft_target_ms"] == 50.0
    assert [each["rate"] for each in policy["points"]] == [8, 64, 512]
    for each in policy["points"]:
        assert each["figures"]["completed"] == 60
        assert each["figures"]["mean_batch"] <= 16
    assert sorted(p.name for p in charts.iterdir()) == ["throughput.svg", "tpot.svg", "ttft.svg"]


def test_targets_decide_the_goodput(capsys: pytest.CaptureFixture[str]) -> None:
    run(replace(SMALL, rate="8", tpot_target=1.0))
    assert "90% of requests meet TTFT 1000 ms and TPOT 1 ms at no rate" in capsys.readouterr().out


def test_costs_can_come_from_a_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Recorded where every step takes a second, a simulated step takes a second."""
    shape = named_shape("387m")
    config = EngineConfig(num_blocks=100, max_model_len=200)
    testbed = in_virtual_time(config, shape, OneSecond(), {})
    workload = Synthetic(num_prompts=40, input_len=Fixed(8), output_len=Fixed(20))
    core, clock = testbed.make(replace(Knobs(), max_num_seqs=8))
    drive(core, ScriptedTraffic(workload.scripts(1000, 0)), clock, Measurement(core, 0.0, {}))
    records, results = tmp_path / "records.jsonl", tmp_path / "results.json"
    Recording(shape, core.records.since(0)).save(records)
    options = replace(SMALL, rate="0.01", requests=20, fit=records, json_file=results)
    assert run(options) == ExitCode.OK
    assert "off by 0.0% (median)" in capsys.readouterr().out
    written = json.loads(results.read_text())
    assert written["envelope"]["num_blocks"] == 100
    figures = written["policies"][0]["points"][0]["figures"]
    assert figures["median_tpot_ms"] == pytest.approx(1000, rel=1e-3)
    with pytest.raises(SettingsError, match=r"--model: with --fit"):
        run(replace(options, model="llama-8b"))
    with pytest.raises(SettingsError, match=r"must be at most 1600, the token slots of the pool"):
        run(replace(options, input_len="1600"))
    for slots in (8, 159):
        with pytest.raises(SettingsError, match=rf"^--kv-slots: it is {slots}; .* at least 160, "):
            run(replace(options, kv_slots=slots))
    assert run(replace(options, kv_slots=160)) == ExitCode.OK
    assert json.loads(results.read_text())["envelope"]["num_blocks"] == 10


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "tpu"}, "--device: device is 'tpu'; it must be one of h100, "),
        ({"model": "gpt"}, "--model: model is 'gpt'; it must be one of llama-8b, "),
        ({"policy": "best"}, "--policy: policy is 'best'; it must be one of "),
        ({"requests": 5}, "--requests: it is 5; it must be at least 20"),
        ({"burstiness": 0.0}, "--burstiness: it is 0.0; it must be above 0"),
        ({"ttft_target": -1.0}, "--ttft-target: ttft_target_ms is -1.0; it must be from "),
        ({"tpot_target": math.nan}, "--tpot-target: tpot_target_ms is nan; it must be from "),
        ({"seed": -1}, "--seed: it is -1; it must be at least 0"),
        ({"input_len": "many"}, "--input-len: 'many' is not a length"),
        ({"output_len": "0"}, "--output-len: '0' is not a length"),
        ({"swap_memory": "2GX"}, "--swap-memory: it is '2GX'; it must be a size such as 2GiB"),
        ({"fit": Path("x"), "swap_memory": "1G"}, "--swap-memory: a recording does not say"),
        ({"kv_slots": 159}, "--kv-slots: it is 159; it must be at least 160, "),
        ({"knob": ["speed=9"]}, "--knob: speed is not a knob"),
        ({"knob": ["speed"]}, "--knob: 'speed' is not a knob; it must be name=value"),
        ({"knob": ["queue_limit=0"]}, "--knob: queue_limit is 0; it must be from 1 to "),
        ({"knob": ["policy=orca"]}, "--knob: set policy with --policy"),
        ({"knob": ["tpot_target_ms=5"]}, "--knob: set tpot_target_ms with --tpot-target"),
        ({"fit": Path("missing.jsonl")}, "--fit: missing.jsonl cannot be read"),
    ],
)
def test_a_wrong_option_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        run(replace(SMALL, **changes))  # type: ignore[arg-type]
    assert str(caught.value).startswith(message)


def test_a_model_that_does_not_fit_is_no_usage_error() -> None:
    with pytest.raises(ModelLoadError, match="does not fit on l4"):
        run(replace(SMALL, device="l4", model="opt-13b"))


def test_a_refused_request_was_offered_and_not_kept_up_with() -> None:
    config = EngineConfig(num_blocks=1000, max_model_len=100)
    testbed = in_virtual_time(config, named_shape("387m"), OneSecond(), {})
    wanted = Sweep(
        workload=Synthetic(num_prompts=400, input_len=Fixed(8), output_len=Fixed(10)),
        rates=[4.0],
        # Ten slots of ten steps serve one request a second.
        knobs={"stall_free": replace(Knobs(), max_num_seqs=10, queue_limit=2)},
        targets={},
    )
    (curve,) = wanted.run(testbed, lambda what: None, lambda: None)
    (point,) = curve.points
    assert point.figures["failed"] > 250
    assert point.kept_up == pytest.approx(0.25, rel=0.15)
    assert curve.knee is None


def test_interrupted_at_the_first_rate_there_is_nothing_to_draw(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr("app.bench.runs.drive", interrupted)
    assert run(SMALL) == ExitCode.INTERRUPTED
    assert "\u2502" not in capsys.readouterr().out


def test_a_folder_that_is_not_there_is_told_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"--json: there is no folder .*nowhere"):
        run(replace(SMALL, json_file=tmp_path / "nowhere" / "sweep.json"))


def test_charts_that_could_not_be_written_are_told_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(SettingsError, match=r"--svg: .*taken is not a folder"):
        run(replace(SMALL, svg=tmp_path / "taken" / "charts"))
