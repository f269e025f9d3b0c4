from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from app.commands import doctor
from app.process.exits import ExitCode
from app.settings.settings import PREFIX, Settings
from app.system.versions import PACKAGES, version
from engine.api.client import LoadRequest
from engine.api.errors import EngineError, InvalidConfigError, ModelError
from engine.api.status import ModelCard, OffPath, QuantizationLoss
from engine.model.catalog.registry import ModelEntry
from engine.serving.loading import Progress
from tests.support.brokers import Mosquitto
from tests.support.nvml import Gpu, install

Examine = Callable[..., tuple[int, str]]

CARD = ModelCard("builtin", "Scripted", 1000, "float32", "cpu", "cpu (avx2)", 512, 4000, 64)


@pytest.fixture(autouse=True)
def loads(monkeypatch: pytest.MonkeyPatch) -> list[ModelCard | EngineError]:
    """Loads of a model in turn; the last has a model whose operations all have kernels."""
    coming: list[ModelCard | EngineError] = []

    def load(request: LoadRequest, progress: Progress) -> SimpleNamespace:
        progress(f"loading {request.model}", 1, 2)
        found = coming.pop(0) if coming else CARD
        if isinstance(found, EngineError):
            raise found
        return SimpleNamespace(card=found, close=lambda: None)

    monkeypatch.setattr("engine.model.loading.loader.load_model", load)
    return coming


@pytest.fixture
def examine(own_process: Path, capsys: pytest.CaptureFixture[str]) -> Examine:
    def run(config: Path | None = None, **flags: object) -> tuple[int, str]:
        settings, trouble = doctor.settings_or_default(flags, config)
        code = doctor.run(settings, config, trouble, is_named="model" in flags and trouble is None)
        return code, capsys.readouterr().out

    return run


def test_all_is_well_here(examine: Examine) -> None:
    code, text = examine()
    assert code == ExitCode.OK
    for package in PACKAGES[1:]:
        assert f"  {package} " in text
        assert version(package) in text
    for title in ("Versions", "Machine", "Model", "Terminal", "Files"):
        assert f"{title}\n" in text
    assert "\nMissing" not in text
    assert str(Settings().store_file) in text
    assert str(Settings().log_file) in text


def test_torch_that_cannot_be_imported_is_told_with_the_way_to_get_it(
    examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    code, text = examine()
    assert code == ExitCode.FAILED
    missing = text.partition("\nMissing\n")[2]
    assert missing.startswith("  torch: it cannot be imported (ModuleNotFoundError: ")
    assert doctor.CPU_TORCH in missing


def test_the_kernels_in_use_are_told(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    def native(levels: list[str], threads: int) -> SimpleNamespace:
        return SimpleNamespace(
            level=lambda: levels[0], levels=lambda: levels, threads=lambda: threads
        )

    monkeypatch.setattr(doctor, "kernels", lambda: native(["amx", "avx512", "avx2"], 2))
    assert " kernels       amx, 2 threads (avx512 and avx2 are here too)\n" in examine()[1]
    monkeypatch.setattr(doctor, "kernels", lambda: native(["avx512", "avx2"], 1))
    assert " kernels       avx512, 1 thread (avx2 is here too)\n" in examine()[1]
    monkeypatch.setattr(doctor, "kernels", lambda: native(["avx2"], 1))
    assert " kernels       avx2, 1 thread\n" in examine()[1]


def test_missing_kernels_are_no_fault(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "kernels", lambda: None)
    monkeypatch.setattr(doctor, "why_not", lambda: "no compiler; install g++")
    code, text = examine()
    assert code == ExitCode.OK
    assert " kernels       none\n" in text
    told = "kernels: models run slower on the processor without them: no compiler; install g++"
    assert told in text.partition("\nCould be better\n")[2]


def test_a_level_of_kernels_that_is_none(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise InvalidConfigError("BATCHDECK_KERNELS is 'x'; allowed are avx2")

    monkeypatch.setattr(doctor, "kernels", refuse)
    code, text = examine()
    assert code == ExitCode.FAILED
    assert "\nMissing\n  kernels: BATCHDECK_KERNELS is 'x'; allowed are avx2" in text


SMALL = Gpu("GPU-1", "NVIDIA T4", used=4 << 30, total=16 << 30)
LARGE = Gpu("GPU-2", "NVIDIA H100", used=8 << 30, total=80 << 30)


def see(monkeypatch: pytest.MonkeyPatch, *gpus: Gpu, capability: tuple[int, int] = (8, 0)) -> None:
    """Let torch see these GPUs, in this order."""
    named = {torch.device("cuda", number): gpu for number, gpu in enumerate(gpus)}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(gpus))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: named[device].name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80", "sm_90"])
    monkeypatch.setattr(torch.version, "cuda", "13.0" if gpus else None)
    monkeypatch.setattr("engine.model.machine.device._why_broken", lambda device: "")
    monkeypatch.setattr("engine.model.machine.device.gpu_uuid", lambda device: named[device].uuid)


def machine_of(text: str) -> list[str]:
    """The lines of GPUs under "Machine"."""
    lines = text.partition("\nMachine\n")[2].partition("\nModel\n")[0].splitlines()
    return [" ".join(line.split()) for line in lines if line.startswith(("  cuda:", "  GPU"))]


def test_gpus_are_listed_by_the_names_that_device_takes(
    examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    install(monkeypatch, SMALL, LARGE)
    see(monkeypatch, LARGE, SMALL)
    code, text = examine()
    assert code == ExitCode.OK
    assert machine_of(text) == [
        "cuda:0 NVIDIA H100, 72.00 GiB of 80.00 GiB free, GPU-2",
        "cuda:1 NVIDIA T4, 12.00 GiB of 16.00 GiB free, GPU-1",
    ]
    assert " device           cuda:0, NVIDIA H100\n" in text
    assert " device           cuda:1, NVIDIA T4\n" in examine(device="cuda:1")[1]


def test_the_model_is_to_fit_on_the_device_that_is_asked_for(
    examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    full = replace(LARGE, used=LARGE.total - (1 << 20))
    install(monkeypatch, SMALL, full)
    see(monkeypatch, SMALL, full)
    code, text = examine()
    assert code == ExitCode.OK
    assert " device           cuda:0, NVIDIA T4\n" in text  # the emptiest
    code, text = examine(device="cuda:1")
    assert code == ExitCode.FAILED
    assert (
        "\nMissing\n  model: its weights take 17.6 MiB; of memory 1.0 MiB are free, and it" in text
    )


def test_a_gpu_that_is_hidden_is_told_with_what_hides_it(
    examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, SMALL, LARGE)
    # The large one may be number 0 for CUDA, which counts the fastest first.
    for shown in ("0", "1", "GPU-2"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
        see(monkeypatch, LARGE)
        seen, hidden = machine_of(examine()[1])
        assert seen == "cuda:0 NVIDIA H100, 72.00 GiB of 80.00 GiB free, GPU-2"
        assert hidden.startswith("GPU NVIDIA T4, ")
        assert hidden.endswith(f", GPU-1, hidden: CUDA_VISIBLE_DEVICES is {shown!r}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    see(monkeypatch)
    code, text = examine()
    assert [line.partition(", hidden")[2] for line in machine_of(text)] == [
        ": CUDA_VISIBLE_DEVICES is ''",
        ": CUDA_VISIBLE_DEVICES is ''",
    ]
    assert code == ExitCode.OK
    assert "although there is a GPU" not in text
    code, text = examine(device="cuda:0")
    assert code == ExitCode.FAILED
    told = "device: device is 'cuda:0', but torch sees no GPU here; CUDA_VISIBLE_DEVICES is ''"
    assert f"\nMissing\n  {told}" in text


def test_gpus_of_a_torch_that_is_none_for_gpus(
    examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    install(monkeypatch, SMALL)
    see(monkeypatch)
    code, text = examine()
    assert code == ExitCode.OK
    assert machine_of(text) == ["GPU NVIDIA T4, 12.00 GiB of 16.00 GiB free, GPU-1"]
    assert (
        f"device: the processor computes, although there is a GPU: torch {torch.__version__} is a "
        "build without CUDA; install one with it: pip install --force-reinstall torch\n"
    ) in text.partition("\nCould be better\n")[2]
    monkeypatch.setitem(sys.modules, "torch", None)
    assert machine_of(examine()[1]) == ["GPU NVIDIA T4, 12.00 GiB of 16.00 GiB free, GPU-1"]


def test_a_gpu_that_torch_has_no_kernels_for(
    examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    install(monkeypatch, SMALL)
    see(monkeypatch, SMALL, capability=(6, 1))
    code, text = examine()
    assert code == ExitCode.OK
    assert " device           cpu, this processor\n" in text
    reason = f"torch {torch.__version__} has no kernels for NVIDIA T4 (sm_61)"
    told = f"device: the processor computes, although there is a GPU: {reason}"
    assert told in text.partition("\nCould be better\n")[2]
    code, text = examine(device="cuda:0")
    assert code == ExitCode.FAILED
    assert f"\nMissing\n  device: device is 'cuda:0', but {reason}" in text


def kernels_of(text: str) -> dict[str, str]:
    """Advice on our kernels on a GPU."""
    lines = [line.strip() for line in text.partition("\nCould be better\n")[2].splitlines()]
    told = dict(
        line.split(": torch alone computes on the GPU, slower: ", 1)
        for line in lines
        if ": torch alone" in line
    )
    assert all(f"\n  {name} " in text for name in told)
    return told


def test_what_compiles_kernels_for_a_gpu_is_tried(
    examine: Examine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    assert " C compiler " not in examine()[1]  # there is no GPU
    install(monkeypatch, SMALL)
    monkeypatch.setattr(doctor, "find_spec", lambda name: object())
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\ncase $(cat) in *Python.h*) exit 0;; esac\nexit 2\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    text = examine()[1]
    assert kernels_of(text) == {}
    assert f" kernel cache  {tmp_path / 'cache'}\n" in text
    compiler.write_text(
        "#!/bin/sh\necho 'x.c:1: fatal error: Python.h: No such file' >&2\nexit 1\n"
    )
    told = kernels_of(examine()[1])["C compiler"]
    assert "(x.c:1: fatal error: Python.h: No such file); install the headers" in told
    monkeypatch.setenv("CC", "no-such-compiler")
    assert (
        "no-such-compiler does not run (FileNotFoundError" in kernels_of(examine()[1])["C compiler"]
    )
    monkeypatch.delenv("CC")
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    code, text = examine()
    assert code == ExitCode.OK
    assert kernels_of(text) == {"C compiler": "there is none; install gcc, or name it in CC"}
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file"))
    told = kernels_of(examine()[1])["kernel cache"]
    assert told.endswith("file cannot be written; set TRITON_CACHE_DIR to a folder that can")
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    assert kernels_of(examine()[1]) == {"Triton": "it is not installed: pip install triton"}


def test_the_least_c_file_is_compiled_as_triton_does(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc")
    monkeypatch.setattr(doctor.sysconfig, "get_path", lambda *_: "/nowhere")
    assert "Python.h: No such file or directory" in doctor._why_not_compiled(compiler)


def test_a_gpu_that_only_torch_knows(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    see(monkeypatch, LARGE)
    (line,) = machine_of(examine()[1])
    assert line == "cuda:0 NVIDIA H100, GPU-2, not reported by NVIDIA's driver"


def test_a_package_that_is_not_installed(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version", lambda name: "" if name == "safetensors" else "1")
    code, text = examine()
    assert code == ExitCode.FAILED
    assert "  safetensors: it is not installed: pip install safetensors" in text


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"model": "nope"}, "model: model 'nope' is unknown"),
        ({"model": "./nope"}, "model: folder ./nope does not exist"),
        ({"models": "nothere.toml"}, "model: nothere.toml: No such file"),
        ({"device": "abacus"}, "device: device is 'abacus'; allowed are auto, cpu, cuda"),
    ],
)
def test_a_model_or_device_that_cannot_be_had(
    examine: Examine, flags: dict[str, str], told: str
) -> None:
    code, text = examine(**flags)
    assert code == ExitCode.FAILED
    assert f"\nMissing\n  {told}" in text


def test_a_model_that_is_still_to_be_downloaded_is_no_fault(examine: Examine) -> None:
    code, text = examine(model="batchdeck-tests/not-on-this-machine")
    assert code == ExitCode.OK
    assert "\nCould be better\n" in text
    assert "model: its weights are not on this machine" in text


def test_broken_settings_are_told_and_the_rest_is_examined(
    examine: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "c.toml"
    config.write_text("modle = 'x'\n")
    monkeypatch.setenv(f"{PREFIX}COLOUR", "red")
    code, text = examine(config)
    assert code == ExitCode.FAILED
    assert f"\nMissing\n  configuration: {config}: modle is not a setting" in text
    assert "\n  TUI_COLOUR: no setting is read from it" in text
    assert "builtin" in text


def test_a_store_that_cannot_be_written(examine: Examine, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, text = examine(data_dir=str(tmp_path / "file" / "deeper"))
    assert code == ExitCode.FAILED
    assert "store: " in text.partition("\nMissing\n")[2]
    assert "cannot be written; set data_dir to another place" in text


def test_a_cache_folder_that_cannot_be_written(
    examine: Examine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor, "cache_folder", lambda: tmp_path / "file" / "batchdeck")
    assert f"  cache          {tmp_path}/file/batchdeck\n" in examine()[1]
    (tmp_path / "file").touch()
    code, text = examine()
    assert code == ExitCode.OK  # it is only slower
    assert "  cache: " in text.partition("\nCould be better\n")[2]
    assert "batchdeck cannot be written; set XDG_CACHE_HOME to another place" in text


def test_a_broker_is_examined_where_one_is_stated(examine: Examine) -> None:
    assert "MQTT" not in examine()[1]
    with Mosquitto() as mosquitto:
        url = f"mqtt://alice:geheim@127.0.0.1:{mosquitto.port}"
        code, text = examine(mqtt=url)
        assert code == ExitCode.OK
        assert "\nMQTT\n  encryption  none\n" in text
        assert f"mqtt://alice@127.0.0.1:{mosquitto.port}, answers by MQTT 5\n" in text
    code, text = examine(mqtt=url)
    assert code == ExitCode.FAILED
    told = f"cannot connect to mqtt://alice@127.0.0.1:{mosquitto.port}: no broker listens there"
    assert f"\nMissing\n  broker: {told}" in text
    assert "geheim" not in text


def test_a_password_file_that_cannot_be_read(examine: Examine, tmp_path: Path) -> None:
    code, text = examine(mqtt="mqtt://a@127.0.0.1", password_file=str(tmp_path / "nothere"))
    assert code == ExitCode.FAILED
    assert "\n  broker: password_file is " in text


LOSSES = {
    "int8": QuantizationLoss(2048, 0.989, 0.0013),
    "int4": QuantizationLoss(2048, 0.926, 0.029),
}


@pytest.fixture
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """This installation has kernels."""
    monkeypatch.setattr("app.system.machine.kernels", object)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, _kernels: None) -> list[LoadRequest]:
    """The requests by which losses were to be measured; the measure itself is a stand-in."""
    asked: list[LoadRequest] = []

    def measure(
        entry: ModelEntry, request: LoadRequest, progress: Progress
    ) -> dict[str, QuantizationLoss]:
        progress(f"quantizing {entry.name}", 1, 2)
        asked.append(request)
        return LOSSES if request.quantize is None else {request.quantize: LOSSES[request.quantize]}

    monkeypatch.setattr("engine.model.loading.losses.measure_losses", measure)
    return asked


EMBED = OffPath("embed", 576, 1, "differs from the model by 0.0039", 0.25)
NOT_READ = "sin in Layer is not read"


@pytest.mark.parametrize(
    ("changes", "told", "trouble"),
    [
        ({}, "kernels compute  all of its operations", ""),
        (
            {"packed_as": "fp8", "rounded_to": "int8", "loss": LOSSES["int8"]},
            "quantized        weights of fp8 rounded to int8, activations to 15 bits: after 98.9%"
            " of 2,048 tokens the likeliest next token stays the same; divergence 0.0013 nats a"
            " token",
            "",
        ),
        (
            {"off_path": (EMBED,)},
            "embed of 576 columns  by torch, 1 operation, 25% of a decode step",
            "embed of 576 columns: it is slower than it could be: differs from the model by 0.0039",
        ),
        (
            {"off_kernels": NOT_READ},
            "kernels compute  none of its operations",
            f"kernels compute: it is slower than it could be: {NOT_READ}",
        ),
    ],
)
def test_what_kernels_do_not_compute_is_told_of_a_model_that_is_named(
    examine: Examine,
    measured: list[LoadRequest],
    loads: list[ModelCard | EngineError],
    changes: dict[str, Any],
    told: str,
    trouble: str,
) -> None:
    assert "Fast path" not in examine(device="cpu")[1]
    loads.append(replace(CARD, **changes))
    code, text = examine(model="builtin", device="cpu")
    assert code == ExitCode.OK
    section = text.partition("\nFast path (the model is loaded, which takes a while)\n")[2]
    assert section.splitlines()[0].strip() == told
    assert trouble in text.partition("\nCould be better\n")[2]
    assert measured


def test_a_model_that_cannot_be_loaded_is_missing(
    examine: Examine, measured: list[LoadRequest], loads: list[ModelCard | EngineError]
) -> None:
    loads.append(ModelError("Llama is not supported: its logits are not finite"))
    code, text = examine(model="builtin", device="cpu")
    assert code == ExitCode.FAILED
    assert "  model: Llama is not supported: its logits are not finite" in text


def test_what_quantizing_changes_is_told_of_a_model_that_is_named(
    examine: Examine, measured: list[LoadRequest]
) -> None:
    assert "Quantized weights" not in examine(device="cpu")[1]
    assert measured == []
    code, text = examine(model="builtin", device="cpu")
    assert code == ExitCode.OK
    assert text.partition("\nQuantized weights ")[2].splitlines()[:3] == [
        "(the model is loaded for each width, which takes a while)",
        "  int8  the likeliest next token stays the same after 98.9% of 2,048 tokens, divergence"
        " 0.0013 nats a token",
        "  int4  the likeliest next token stays the same after 92.6% of 2,048 tokens, divergence"
        " 0.029 nats a token",
    ]
    text = examine(model="builtin", device="cpu", quantize="int4")[1]
    assert measured[-1] == LoadRequest("builtin", device="cpu", quantize="int4")
    assert "  int4  the likeliest" in text
    assert "int8  the likeliest" not in text


@pytest.mark.parametrize(
    "flags",
    [
        {"model": "batchdeck-tests/not-on-this-machine"},
        {"model": "nope"},
        {"model": "builtin", "quantize": "int3"},
        {"model": "builtin", "device": "cuda"},
    ],
)
def test_nothing_is_measured_where_the_model_is_not_ready_on_a_processor(
    examine: Examine,
    measured: list[LoadRequest],
    monkeypatch: pytest.MonkeyPatch,
    flags: dict[str, str],
) -> None:
    install(monkeypatch, LARGE)
    see(monkeypatch, LARGE)
    examine(**{"device": "cpu", **flags})
    assert measured == []


def test_without_kernels_only_they_are_missing(
    examine: Examine, measured: list[LoadRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.system.machine.kernels", lambda: None)
    monkeypatch.setattr("app.system.machine.why_not", lambda: "no compiler")
    code, text = examine(model="builtin", device="cpu")
    assert (code, measured) == (ExitCode.OK, [])
    assert "uantized" not in text
    code, text = examine(model="builtin", device="cpu", quantize="int8")
    assert (code, measured) == (ExitCode.FAILED, [])
    assert "model: weights are quantized for the native kernels only, and there are none:" in text


def test_on_a_gpu_it_is_told_that_nothing_can_be_quantized(
    examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, LARGE)
    see(monkeypatch, LARGE)
    code, text = examine(model="builtin", quantize="int8", device="cuda:0")
    assert code == ExitCode.FAILED
    assert (
        "\nMissing\n  model: weights are quantized on a processor only, and the device is cuda:0"
        in text
    )


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize(("width", "title"), [("int8", "Missing"), (None, "Could be better")])
def test_a_model_that_cannot_be_quantized_is_a_fault_only_if_it_is_to_be(
    examine: Examine, monkeypatch: pytest.MonkeyPatch, width: str | None, title: str
) -> None:
    def refuse(*_: object) -> None:
        raise ModelError("LlamaForCausalLM cannot be quantized to int8: it runs module by module")

    monkeypatch.setattr("engine.model.loading.losses.measure_losses", refuse)
    code, text = examine(model="builtin", device="cpu", quantize=width)
    assert code == (ExitCode.FAILED if width else ExitCode.OK)
    assert "\n  quantized  not measured\n" in text
    told = text.partition(f"\n{title}\n")[2]
    assert "  quantized: LlamaForCausalLM cannot be quantized to int8: it runs" in told
