from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from app.commands import cli, demo, doctor, plain, serve
from app.process import serving
from app.process.exits import ExitCode
from app.settings.settings import Settings
from engine.api.client import LoadRequest
from engine.api.config import BLOCK_SIZE
from engine.api.errors import ModelError
from engine.serving.loading import LoadedModel, Progress

HEAVY = (
    "torch",
    "transformers",
    "textual",
    "rich",
    "pydantic",
    "asyncio",
    "aiomqtt",
    "engine",
    "app.settings.settings",
    "app.settings.layers",
)


def tui(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, arguments, prog_name="tui")


@pytest.mark.parametrize("flag", ["-h", "--version"])
def test_help_and_version_load_nothing_of_weight(flag: str) -> None:
    code = (
        "import sys\nfrom app.commands.cli import main\n"
        "try:\n    main()\n"
        f"finally:\n    print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code, flag], capture_output=True, text=True)
    assert ran.returncode == 0
    assert ran.stderr == "[]\n"
    assert ran.stdout.startswith("batchdeck " if flag == "--version" else "Usage: tui ")


def test_settings_are_read_without_plugins_and_their_modules_are_walked_no_more() -> None:
    code = (
        "import gc, sys\nfrom pydantic.plugin import _loader\nfrom app.commands.cli import main\n"
        "try:\n    main()\n"
        "finally:\n    print(_loader._plugins, gc.get_freeze_count() > 10_000, file=sys.stderr)\n"
    )
    environment = {n: v for n, v in os.environ.items() if n != "PYDANTIC_DISABLE_PLUGINS"}
    ran = subprocess.run(
        [sys.executable, "-c", code, "models"], capture_output=True, text=True, env=environment
    )
    assert ran.returncode == 0
    assert ran.stderr == "None True\n"


@pytest.mark.parametrize("command", ["models", "doctor", "demo", "serve", "ask"])
def test_each_command_has_help(command: str) -> None:
    result = tui(command, "--help")
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: tui {command} ")


@pytest.mark.parametrize("command", [(), ("serve",), ("bench",)])
def test_help_tells_the_size_of_a_block(command: tuple[str, ...]) -> None:
    """Its number stands in the text: `--help` loads nothing of the engine, which states it."""
    assert f"of {BLOCK_SIZE} tokens" in tui(*command, "--help").output


def test_flags_reach_the_settings(own_process: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, object] = {}

    def run(settings: Settings, *, each: bool, as_json: bool) -> int:
        seen.update(settings=settings, each=each, as_json=as_json)
        return ExitCode.OK

    monkeypatch.setattr(plain, "run", run)
    flags = (
        "--model m --models r.toml --device cpu --dtype float32 --kv-memory 1MiB --max-model-len 64"
        " --swap-memory 2MiB --quantize int8"
        " --max-num-seqs 4 --max-num-batched-tokens 32 --log-level debug --system S --max-tokens 5"
        " --temperature 0 --top-p 0.5 --top-k 3 --seed 9 --stop A --stop B --each --json"
        " --policy orca --knob order=fair --knob max_num_seqs=2 --pin-system"
    )
    arguments = ("--chat-template-kwargs", '{"enable_thinking": false}')
    assert tui(*flags.split(), *arguments).exit_code == 0
    settings = seen["settings"]
    assert isinstance(settings, Settings)
    assert settings.load_request() == LoadRequest(
        model="m",
        models_file="r.toml",
        device="cpu",
        dtype="float32",
        quantize="int8",
        kv_memory=1 << 20,
        swap_memory=2 << 20,
        max_model_len=64,
        max_num_seqs=4,
        max_num_batched_tokens=32,
        knobs={"policy": "orca", "order": "fair", "max_num_seqs": 2},
    )
    assert settings.pin_system
    assert (settings.log_level, settings.system) == ("debug", "S")
    assert settings.sampling == {
        "max_tokens": 5,
        "temperature": 0.0,
        "top_p": 0.5,
        "top_k": 3,
        "seed": 9,
        "stop": ["A", "B"],
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert (seen["each"], seen["as_json"]) == (True, True)

    assert tui("--num-blocks", "7").exit_code == 0
    settings = seen["settings"]
    assert isinstance(settings, Settings)
    assert settings.num_blocks == 7
    assert (settings.sampling, settings.knobs, settings.pin_system) == ({}, {}, False)
    assert (seen["each"], seen["as_json"]) == (False, False)


def test_a_flag_that_is_not_given_leaves_the_rest_as_it_is(
    own_process: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Settings] = []

    def run(settings: Settings, **_: bool) -> int:
        seen.append(settings)
        return ExitCode.OK

    monkeypatch.setattr(demo, "run", run)
    monkeypatch.setattr(plain, "run", run)
    monkeypatch.setenv("TUI_PIN_SYSTEM", "true")
    monkeypatch.setenv("TUI_POLICY", "dynamic")
    for command in ([], ["demo"], ["--demo"]):
        assert tui(*command, "--knob", "batch_window_ms=5").exit_code == ExitCode.OK
        assert seen[-1].pin_system
        assert seen[-1].knobs == {"policy": "dynamic", "batch_window_ms": 5.0}


def test_flags_reach_the_server(own_process: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Settings] = []

    def run(settings: Settings) -> int:
        seen.append(settings)
        return ExitCode.OK

    monkeypatch.setattr(serve, "run", run)
    flags = (
        "--mqtt mqtts://gpu:geheim@host --pool lab --node box --ca-file ca --cert-file c"
        " --key-file k --model m --system S --max-tokens 5 --policy orca --num-blocks 7"
        " --quantize int4"
    )
    assert tui("serve", *flags.split()).exit_code == ExitCode.OK
    (settings,) = seen
    mqtt = settings.mqtt
    assert (mqtt.url, mqtt.pool, mqtt.node) == ("mqtts://gpu@host", "lab", "box")
    assert (mqtt.ca_file, mqtt.cert_file, mqtt.key_file) == (Path("ca"), Path("c"), Path("k"))
    assert mqtt.address().password == "geheim"
    assert (settings.model, settings.system, settings.num_blocks) == ("m", "S", 7)
    assert settings.quantize == "int4"
    assert (settings.sampling, settings.knobs) == ({"max_tokens": 5}, {"policy": "orca"})
    assert settings.log_level == "info"

    flags = "--embedded-broker --log-level error"
    assert tui("serve", *flags.split()).exit_code == ExitCode.OK
    assert seen[-1].mqtt.embedded_broker
    assert seen[-1].log_level == "error"


def test_doctor_measures_only_a_model_that_the_command_line_names(
    own_process: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str | None, bool]] = []

    def run(settings: Settings, *_: object, is_named: bool) -> int:
        seen.append((settings.model, settings.quantize, is_named))
        return ExitCode.OK

    monkeypatch.setattr(doctor, "run", run)
    monkeypatch.setenv("TUI_MODEL", "env")
    for options in ([], ["--model", "m", "--quantize", "int4"], ["--model", "m", "--mqtt", "x"]):
        assert tui("doctor", *options).exit_code == ExitCode.OK
    # Settings that are wrong are told, and nothing that they name is loaded.
    assert seen == [("env", None, False), ("m", "int4", True), ("builtin", None, False)]


WRONG = {
    "--nope": "No such option: --nope",
    "nope": "No such command 'nope'",
    "--top-k x": "--top-k",
    "--top-p 7": "--top-p: top_p is 7.0; it must be a number above 0 and at most 1",
    "--temperature nan": "--temperature: temperature is nan; it must be a number from 0 to 100",
    "--max-tokens 0": "--max-tokens: max_tokens is 0; it must be an integer from 1 to",
    "--seed -2": "--seed: seed is -2; it must be an integer from 0 to",
    "--kv-memory 2GX": "--kv-memory: kv_memory is '2GX'; it must be a size such as 2GiB",
    "--num-blocks 0": "--num-blocks: num_blocks is 0; it should be greater than 0",
    "--num-blocks 9 --kv-memory 1G": "num_blocks and kv_memory exclude each other",
    "--policy fifo": "--policy: policy is 'fifo'; it must be one of 'stall_free'",
    "--policy nowhere:Own": "--policy: policy is 'nowhere:Own'; it could not be loaded: Module",
    "--knob watermark=2": "--knob: watermark is 2.0; it must be from 0 to 0.5",
    "--knob watermark": "--knob: 'watermark' is not a knob; it must be name=value",
    "demo --knob nope=2": "--knob: nope is not a knob; allowed are policy,",
    "--knob paused=true demo": "--knob: it has no effect before demo",
    "--policy orca --json models": "--policy: it has no effect before models",
    "--dtype int8": "--dtype: dtype is 'int8'; it must be one of auto, float32",
    "--quantize int3": "--quantize: quantize is 'int3'; it must be one of none, int8, int4",
    "bench --quantize int3": "--quantize: quantize is 'int3'; it must be one of none, int8",
    "--log-level loud": "--log-level: log_level is 'loud'; it should be 'debug', 'info'",
    "--config nothere.toml": "nothere.toml: there is no such configuration file",
    "--json models": "--json: it has no effect before models; options of models come after it",
    "--demo --model m": "--model: the demonstration runs its own chats",
    "--demo --mqtt mqtt://host": "--mqtt: the demonstration runs its own chats",
    "--seed 1 demo": "--seed: it has no effect before demo",
    "--temperature 0 demo": "--temperature: it has no effect before demo",
    "--mqtt mqtt://host": "--mqtt: it works only in a terminal; without one",
    "--embedded-broker": "--embedded-broker: it works only in a terminal",
    "--mqtt mqtt://host serve": "--mqtt: it has no effect before serve",
    "serve": "nothing to serve: state --http [HOST:]PORT or --mqtt URL",
    "serve --mqtt host": "--mqtt: the broker's address 'host' is not mqtt://HOST",
    "serve --mqtt mqtt://host --pool a/b": "--pool: mqtt.pool is 'a/b'; ",
    "ask --mqtt mqtt://host --timeout 0 hi": "--timeout",
    "models --models nothere.toml": "nothere.toml: No such file or directory",
}


@pytest.mark.parametrize(("line", "message"), WRONG.items())
def test_a_wrong_command_line_ends_with_2_and_names_what_is_wrong(
    line: str, message: str, own_process: Path
) -> None:
    result = tui(*line.split())
    assert result.exit_code == ExitCode.USAGE
    assert message in result.stderr
    assert result.stdout == ""


def test_a_wrong_variable_and_a_wrong_key_are_named(
    own_process: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = own_process / "c.toml"
    config.write_text("modle = 'x'\n")
    result = tui("--config", str(config))
    assert (result.exit_code, result.stdout) == (ExitCode.USAGE, "")
    assert result.stderr.startswith(f"tui: {config}: modle is not a setting; allowed are model, ")
    monkeypatch.setenv("TUI_TOP_K", "x")
    result = tui("models")
    assert result.exit_code == ExitCode.USAGE
    assert result.stderr.startswith("tui: TUI_TOP_K: top_k is 'x'; it must be an integer")


@pytest.mark.parametrize(
    ("command", "level", "message"),
    [
        (
            "",
            "banana",
            "tui: BATCHDECK_KERNELS is 'banana'; allowed are amx, avx512, avxvnni, avx2, off\n",
        ),
        (
            "serve --embedded-broker",
            "amx",
            "tui: BATCHDECK_KERNELS is 'amx'; this processor allows avx2, off\n",
        ),
    ],
)
def test_a_level_of_kernels_that_cannot_be_had_is_refused_before_torch_is_imported(
    command: str, level: str, message: str, own_process: Path
) -> None:
    # An older processor: another extension stands in the place of ours.
    code = (
        "import sys, types\n"
        "sys.modules['engine.native._native'] = types.SimpleNamespace(levels=lambda: ['avx2'])\n"
        "from app.commands.cli import main\n"
        "try:\n    main()\n"
        "finally:\n    assert not {'torch', 'textual'} & set(sys.modules)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, *command.split()],
        input="hi\n",
        capture_output=True,
        text=True,
        env={**os.environ, "BATCHDECK_KERNELS": level},
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (ExitCode.USAGE, "", message)


def test_a_model_that_cannot_be_loaded_ends_with_3_and_is_told_once(
    own_process: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(request: LoadRequest, progress: Progress) -> LoadedModel:
        raise ModelError(f"model {request.model!r} is unknown")

    monkeypatch.setattr(serving, "load_model", refuse)
    result = tui("--model", "nope")
    assert result.exit_code == ExitCode.NO_MODEL
    assert result.stderr == "tui: could not load nope: model 'nope' is unknown\n"
    assert result.stdout == ""


UNKNOWN = {
    "--model nope": "could not load nope: model 'nope' is unknown; nearest to it are ",
    "--model ./nope": "could not load ./nope: folder ./nope does not exist\n",
    "serve --embedded-broker --model nope": "could not load nope: model 'nope' is unknown; ",
    "bench --model nope": "model 'nope' is unknown; ",
    "--models nothere.toml": "could not load builtin: nothere.toml: No such file or directory\n",
}


def test_a_model_that_there_is_not_is_told_before_torch_is_imported(own_process: Path) -> None:
    code = (
        "import sys\nfrom app.commands.cli import main\n"
        "try:\n    main()\n"
        "finally:\n    assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    # A process for each: an ended command ends its process for good some seconds later.
    for line, message in UNKNOWN.items():
        command = [sys.executable, "-c", code, *line.split()]
        ran = subprocess.run(command, input="x\n", capture_output=True, text=True)
        assert (ran.returncode, ran.stdout) == (ExitCode.NO_MODEL, ""), (line, ran.stderr)
        assert f"tui: {message}" in ran.stderr
        assert "Traceback" not in ran.stderr


def test_the_interface_refuses_such_a_model_before_it_opens(own_process: Path) -> None:
    code = (
        "import sys\nfrom app.commands.cli import main\nfrom app.process import process\n"
        "process.is_terminal = lambda stream: True\n"
        "try:\n    main()\n"
        "finally:\n    assert not {'torch', 'textual'} & set(sys.modules)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, "--model", "qwen3-0.6"],
        capture_output=True,
        text=True,
        env={**os.environ, "TERM": "xterm"},
    )
    assert (ran.returncode, ran.stdout) == (ExitCode.NO_MODEL, "")
    reason = "model 'qwen3-0.6' is unknown; close to it are qwen3-0.6b, qwen3"
    assert ran.stderr.startswith(f"tui: could not load qwen3-0.6: {reason}")


def test_the_whole_way_on_the_built_in_model(own_process: Path) -> None:
    flags = "--json --each --temperature 0 --max-tokens 12 --num-blocks 64"
    lines = b"hi\n\nWhat is 2 + 2?\n\xff\n"
    ran = subprocess.run(
        [sys.executable, "-c", "from app.commands.cli import main; main()", *flags.split()],
        input=lines,
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ran.stderr == b""
    assert ran.returncode == ExitCode.FAILED
    first, empty, third, invalid = map(json.loads, ran.stdout.splitlines())
    for reply in (first, third):
        assert list(reply) == ["text", "finish_reason", "usage", "timings"]
        assert reply["text"].strip()
        assert reply["finish_reason"] in ("stop", "length")
        usage, timings = reply["usage"], reply["timings"]
        assert list(usage) == [
            *("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens")
        ]
        assert usage["prompt_tokens"] > 0
        assert 1 < usage["completion_tokens"] <= 12
        assert list(timings) == ["queue_ms", "ttft_ms", "tpot_ms", "e2e_ms", "thinking_ms"]
        assert 0 <= timings["queue_ms"] <= timings["ttft_ms"] < timings["e2e_ms"]
        gaps = usage["completion_tokens"] - 1
        spent = timings["ttft_ms"] + gaps * timings["tpot_ms"]
        assert spent == pytest.approx(timings["e2e_ms"], abs=0.01 * gaps)
    assert empty["error"]["message"] == "the prompt is empty; it must have some text"
    assert "0xff, which is not valid UTF-8" in invalid["error"]["message"]


@pytest.mark.parametrize("module", ["typer", "app.process.process"])
def test_ctrl_c_ends_it_without_a_traceback_while_it_is_imported(module: str) -> None:
    code = (
        "import signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}:\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "sys.argv[1:] = ['models']\n"
        "from app.commands.start import main\n"
        "main()\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (-signal.SIGINT, "")
