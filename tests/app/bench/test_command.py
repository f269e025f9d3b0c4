"""`tui bench` from its command line to its report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from app.bench.report import SECTIONS
from app.commands import cli
from app.process.exits import ExitCode
from engine.batch.plan import TokenOutput
from engine.core.core import EngineCore
from engine.simulation.records import Recording

SIMULATED = ("--simulate", "h100:llama-8b", "--num-prompts", "6", "--random-output-len", "20")


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ("bench", *arguments), prog_name="tui")


def value(report: str, label: str) -> Sequence[str]:
    (line,) = (line for line in report.splitlines() if line.startswith(label + ":"))
    return line.partition(":")[2].split()


def test_the_built_in_model_serves_a_workload(own_process: Path) -> None:
    file, steps = own_process / "result.json", own_process / "steps.jsonl"
    result = bench(
        *("--num-prompts", "4", "--random-input-len", "12", "--random-output-len", "uniform:2:9"),
        *("--num-blocks", "64", "--max-num-seqs", "4", "--max-num-batched-tokens", "64"),
        *("--goodput", "ttft:60000", "tpot:60000", "--compare", "policy=stall_free"),
        *("--compare", "policy=static,static_batch_size=2", "--rounds", "2"),
        *("--json", str(file), "--save-steps", str(steps)),
    )
    assert result.exit_code == ExitCode.OK, result.output
    report = result.stdout
    assert "policy=static,static_batch_size=2" in report
    assert "Medians of 2 rounds, interleaved." in report
    assert "Padding and bubbles are counted, not computed." in report
    assert value(report, "Successful requests") == ["4", "4", "1.00x"]
    assert value(report, "Total input tokens") == ["48", "48", "1.00x"]
    goodput, throughput = (value(report, f"Request {x} (req/s)") for x in ("goodput", "throughput"))
    assert goodput == throughput

    saved: dict[str, Any] = json.loads(file.read_text())
    assert saved["model"]["name"] == "builtin"
    assert saved["workload"]["output_len"] == "uniform:2:9"
    assert saved["workload"]["seed"] == 0
    assert saved["versions"]["torch"]
    assert saved["machine"]["cores"] >= 1
    assert saved["goodput_targets_ms"] == {"ttft": 60000, "tpot": 60000}
    free, static = saved["settings"]
    assert static["knobs"]["static_batch_size"] == 2
    # The same workload for both, another in each round.
    outputs = [[run["figures"]["total_output_tokens"] for run in s["runs"]] for s in (free, static)]
    assert outputs[0] == outputs[1]
    assert [run["seed"] for run in free["runs"]] == [0, 1]
    assert 8 <= min(outputs[0]) <= max(outputs[0]) <= 36
    assert free["figures"]["padding"] == 0 < static["figures"]["padding"]
    figures = {row.key for section in SECTIONS for row in section.rows}
    assert set(free["figures"]) <= figures

    records = Recording.load(steps).records
    assert {record.policy for record in records} == {"stall_free", "static"}
    counted = sum(run["figures"]["steps"] for s in (free, static) for run in s["runs"])
    assert len(records) == counted


def test_a_simulated_run_is_the_same_every_time_and_says_that_it_is_simulated(
    own_process: Path,
) -> None:
    result = bench(*SIMULATED, "--request-rate", "20", "--plot", "--svg", str(own_process / "svg"))
    assert result.exit_code == ExitCode.OK, result.output
    assert "\nSimulated: times come from a model of the device" in result.stdout
    assert "\x1b" not in result.stdout
    assert "Time to first token" in result.stdout
    assert value(result.stdout, "Request rate configured (RPS)") == ["20.00"]
    again = bench(*SIMULATED, "--request-rate", "20", "--plot")
    assert again.stdout == result.stdout
    names = {path.name for path in (own_process / "svg").iterdir()}
    assert names == {"throughput.svg", "batch.svg", "ttft.svg", "e2el.svg"}


def test_a_setting_may_be_compared_with_itself(own_process: Path) -> None:
    result = bench(*SIMULATED, "--compare", "policy=orca", "--compare", "policy=orca")
    assert value(result.stdout, "Benchmark duration (s)")[2] == "1.00x"


def test_policies_are_compared_by_their_names_alone(own_process: Path) -> None:
    file = own_process / "result.json"
    result = bench(*SIMULATED, "--policy", "orca, stall_free", "--json", str(file))
    assert result.exit_code == ExitCode.OK, result.output
    settings = json.loads(file.read_text())["settings"]
    assert [s["knobs"]["policy"] for s in settings] == ["orca", "stall_free"]
    assert value(result.stdout, "Successful requests") == ["6", "6", "1.00x"]
    alone = bench(*SIMULATED, "--policy", "static", "--knob", "static_batch_size=2")
    assert alone.exit_code == ExitCode.OK, alone.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--policy", "nope"), "tui: --policy: policy is 'nope'; "),
        (("--policy", "orca", "--compare", "policy=orca"), "tui: --policy: each setting of"),
        (
            ("--policy", "orca", "--knob", "policy=static"),
            "tui: --knob: set the policy with --policy",
        ),
    ],
)
def test_a_policy_that_cannot_be_compared_is_refused(
    arguments: tuple[str, ...], told: str, own_process: Path
) -> None:
    result = bench(*SIMULATED, *arguments)
    assert result.exit_code == ExitCode.USAGE
    assert result.stderr.startswith(told)


def test_conversations_hit_the_prefix_cache(own_process: Path) -> None:
    result = bench(
        *SIMULATED, "--turns", "3", "--random-prefix-len", "64", "--max-concurrency", "2"
    )
    assert result.exit_code == ExitCode.OK, result.output
    assert value(result.stdout, "Successful requests") == ["18"]
    assert value(result.stdout, "Maximum request concurrency") == ["2"]
    assert float(value(result.stdout, "Peak concurrent requests")[0]) <= 2
    assert float(value(result.stdout, "Prefix cache hit rate (%)")[0]) > 50


def test_padding_costs_time_only_where_that_is_asked_for(own_process: Path) -> None:
    workload = ("--simulate", "l4:llama-8b", "--num-prompts", "16", "--knob", "policy=static")
    workload += ("--knob", "static_batch_size=16", "--random-output-len", "exponential:64:512")
    free, charged = bench(*workload), bench(*workload, "--charge-padding")
    assert "Padding and bubbles are counted, not costed." in free.stdout
    assert "Padding and bubbles are costed." in charged.stdout
    seconds = [float(value(x.stdout, "Benchmark duration (s)")[0]) for x in (free, charged)]
    assert seconds[0] < seconds[1]


def test_a_dataset_is_served_and_what_does_not_fit_is_told(own_process: Path) -> None:
    path = own_process / "trace.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,396,109\n"
        "2023-11-16 18:15:51.2224670,9000,55\n"
    )
    result = bench("--simulate", "h100:llama-8b", "--dataset-path", str(path))
    assert result.exit_code == ExitCode.FAILED
    assert value(result.stdout, "Successful requests") == ["2"]
    assert value(result.stdout, "Failed requests") == ["1"]
    assert value(result.stdout, "Total generated tokens") == ["153"]
    assert "failed 1x: the prompt is too long: 9000 tokens > 4095 allowed" in result.stdout
    first = bench("--simulate", "h100:llama-8b", "--dataset-path", str(path), "--num-prompts", "2")
    assert first.exit_code == ExitCode.OK


def test_ctrl_c_shows_what_was_measured_and_that_it_is_partial(
    own_process: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, file = EngineCore.step, own_process / "partial.json"
    ended = []

    def interrupted(core: EngineCore) -> list[TokenOutput]:
        if len(ended) == 8:
            raise KeyboardInterrupt
        outputs = step(core)
        ended.extend(one for one in outputs if one.end is not None)
        return outputs

    monkeypatch.setattr(EngineCore, "step", interrupted)
    result = bench(
        *("--simulate", "h100:llama-8b", "--num-prompts", "30", "--random-output-len", "20"),
        *("--max-concurrency", "4", "--json", str(file)),
        *("--compare", "policy=stall_free", "--compare", "policy=orca"),
    )
    assert result.exit_code == ExitCode.INTERRUPTED
    assert "PARTIAL: interrupted; the figures cover the requests that had ended." in result.stdout
    assert "orca" not in result.stdout
    assert "\n" + "policy=stall_free".rjust(57) + "\n" in result.stdout
    assert (
        "\nModel:    llama-8b on h100\nWorkload: 30 requests, 128 tokens in, 20 out"
        in result.stdout
    )
    assert value(result.stdout, "Successful requests") == ["8"]  # two rounds of 4, 20 steps each
    saved = json.loads(file.read_text())
    assert saved["partial"] is True
    assert [setting["label"] for setting in saved["settings"]] == ["policy=stall_free"]


def test_a_workload_that_can_never_be_served_ends_with_the_reason(own_process: Path) -> None:
    result = bench(
        *SIMULATED, "--knob", "policy=static", "--knob", "static_fill=full",
        *("--knob", "static_batch_size=4"),
    )  # fmt: skip
    assert result.exit_code == ExitCode.FAILED
    assert "2 requests wait" in result.stderr


WRONG = {
    "--random-input-len x": "--random-input-len: 'x' is not a length; it must be N, uniform:",
    "--goodput foo:1": "--goodput: 'foo:1' is not a target; it must be NAME:MS with a name of",
    "--goodput ttft:200 tpot:x": "--goodput: 'tpot:x' is not a target",
    "ttft:200": "ttft:200: it does not follow an option",
    "--svg here": "--svg: ",
    "--compare policy=nope": "--compare: policy is 'nope'; it must be one of 'stall_free'",
    "--compare policy=orca,max_num_seqs=9999": "--compare: max_num_seqs is 9999; it must be",
    "--knob max_num_seqs=9999": "--knob: max_num_seqs is 9999; it must be from 1 to 256",
    "--knob bogus=1": "--knob: bogus is not a knob; allowed are policy,",
    "--request-rate 0": "--request-rate: it is 0.0; it must be above 0, inf is allowed",
    "--burstiness nan": "--burstiness: it is nan; it must be above 0",
    "--num-prompts 0": "--num-prompts: it is 0; it must be at least 1",
    "--think-time -1": "--think-time: it is -1.0; it must be at least 0",
    "--seed -1": "--seed: it is -1; it must be at least 0",
    "--dataset-path nowhere": "--dataset-path: nowhere: No such file or directory",
    "--random-input-len 5000": "a request may have 5020 tokens; it must be at most 4096",
    "--json nowhere/x.json": "--json: there is no folder nowhere",
    "--num-blocks 1": "tui: num_blocks is 1; it must be at least 256, for a sequence of 4096",
    "--max-num-seqs 4000": "tui: max_num_batched_tokens is 2048; it must be at least max_num",
    "--simulate h100": "--simulate: simulate is 'h100'; it must be DEVICE:MODEL",
    "--simulate foo:bar": "--simulate: device is 'foo'; it must be one of h100,",
    "--max-num-seqs 0": "--max-num-seqs: max_num_seqs is 0; it should be greater than 0",
}


@pytest.mark.parametrize(("line", "message"), WRONG.items())
def test_a_wrong_option_is_told_in_a_sentence(line: str, message: str, own_process: Path) -> None:
    (own_process / "here").touch()
    line = line.replace("here", str(own_process / "here")) if line == "--svg here" else line
    result = bench(*SIMULATED, *line.split())
    assert result.exit_code == ExitCode.USAGE
    assert message in result.stderr
    assert result.stdout == ""


def test_padding_is_nothing_that_a_model_could_charge(own_process: Path) -> None:
    result = bench("--charge-padding")
    assert result.exit_code == ExitCode.USAGE
    assert "--charge-padding: it works only with --simulate" in result.stderr


def test_a_model_that_is_unknown_ends_with_3(own_process: Path) -> None:
    result = bench("--model", "nope")
    assert result.exit_code == ExitCode.NO_MODEL
    assert "model 'nope' is unknown" in result.stderr
