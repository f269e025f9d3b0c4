from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.commands import models
from app.process.exits import ExitCode
from app.settings.settings import Settings, SettingsError
from app.system.machine import Memory
from engine.builtin import MODEL_DIR
from engine.model.catalog.registry import Registry
from engine.model.files.gguf.header import read_header
from engine.model.machine.estimate import Fit
from tests.support.gguf_files import save_gguf
from tests.support.nvml import Gpu, install

LOTS = 1 << 40
STATED = "context_length = 1000\nparameters = 1_000_000\ncache_numbers = 50\n"


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    shutil.copytree(MODEL_DIR, tmp_path / "cut")
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    file = tmp_path / "models.toml"
    file.write_text(
        '[here]\nsource = "builtin"\ndtype = "float32"\ncontext_length = 512\n'
        "cache_numbers = 1536\n"
        '[cut]\nsource = "./cut"\n'
        '[gone]\nsource = "./gone"\n'
        '[far]\nsource = "batchdeck-tests/not-on-this-machine"\ndtype = "bfloat16"\n'
        f'[told]\nsource = "batchdeck-tests/nor-this"\ndtype = "float32"\n{STATED}'
        "begins_thinking = true\n"
    )
    return Registry.read(file)


def at(free: int, **settings: object) -> models.Place:
    """A GPU with so much free memory."""
    memory = Memory("some GPU", LOTS, free, "GPU-1")
    return models.Place(memory=memory, settings=Settings.model_validate(settings))


def test_each_entry_says_whether_it_can_be_loaded_here(registry: Registry) -> None:
    here, cut, gone, far, told = models.list_models(registry, at(LOTS, device="cpu"))
    assert (here.loads_here, here.reason, here.context_length) == (True, "", 512)
    assert (here.weight_bytes, here.token_bytes, here.fit) == (18_496_000, 6144, Fit.FULL)
    assert not cut.loads_here
    assert "truncated" in cut.reason
    assert not gone.loads_here
    assert "gone has neither model.safetensors nor" in gone.reason
    assert (far.loads_here, far.availability, far.weight_bytes) == (False, "needs download", None)
    assert far.fit is Fit.UNKNOWN
    assert "downloaded when it is first loaded" in far.reason
    assert (told.weight_bytes, told.token_bytes, told.fit) == (4_000_000, 200, Fit.FULL)
    assert told.contexts == (int(LOTS * 0.9) - 4_000_000) // 200 // 1000


def test_weights_beyond_the_free_memory_are_told_with_the_numbers(registry: Registry) -> None:
    here = models.list_models(registry, at(1 << 20))[0]
    assert (here.loads_here, here.fit) == (False, Fit.NOT)
    assert here.reason == (
        "its weights take 17.6 MiB; of memory 1.0 MiB are free, and it may take 0.9 MiB"
    )


def test_the_table_has_a_group_for_each_way_to_fit(registry: Registry) -> None:
    lines = models.to_table(models.list_models(registry, at(4_600_000, device="cpu"))).splitlines()
    assert lines[0].split() == ["name", "here", "weights", "a", "token", "context", "source"]
    assert lines[1:3] == ["", "Fits here with a smaller context:"]
    assert lines[3].split()[:8] == ["told", "after", "download", "3.8", "MiB", "0.2", "KiB", "700"]
    assert lines[4:6] == ["", "Does not fit here:"]
    assert lines[6].split()[:4] == ["here", "no", "17.6", "MiB"]
    assert lines[7:9] == ["", "How much context fits here is known after the download:"]
    assert lines[9].split() == ["far", "after", "download", "batchdeck-tests/not-on-this-machine"]
    assert lines[10:12] == ["", "Cannot be loaded:"]
    assert [line.split()[0] for line in lines[12:14]] == ["cut", "gone"]
    assert lines[15].startswith("cut cannot be loaded: ")
    assert lines[16].startswith("gone cannot be loaded: ")
    assert len(lines) == 17


def told(capsys: pytest.CaptureFixture[str], registry: Registry, name: str) -> dict[str, str]:
    """The lines of one model by their names."""
    models.run(Settings(models=registry.path, device="cpu"), name, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    return {line[:16].strip(): line[16:].strip() for line in lines}


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory("host", LOTS, 8_000_000)
    monkeypatch.setattr(models, "memory_of", lambda device: memory)


def test_one_model_that_is_here_is_traced(
    registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    here = told(capsys, registry, "here")
    assert here["weights"] == "17.6 MiB"
    assert (here["a KV token"], here["a full context"]) == ("6.0 KiB", "3.0 MiB (512 tokens)")
    assert here["fits"].endswith(" full contexts, without the largest step")


def test_the_header_of_a_gguf_file_adds_to_what_its_entry_states(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = tmp_path / "mine" / "weights.gguf"
    weights.parent.mkdir()
    save_gguf(weights)
    file = tmp_path / "models.toml"
    file.write_text(f'[mine]\nsource = "./mine"\ndtype = "float32"\n{STATED}')
    (listed,) = models.list_models(Registry.read(file), at(LOTS, device="cpu"))
    weighs = sum(one.num_bytes for one in read_header(weights).checkpoint.tensors)
    assert (listed.loads_here, listed.weight_bytes, listed.token_bytes) == (True, weighs, 200)
    # 3 layers with a key and a value for each of 2 heads of 16 numbers
    traced = told(capsys, Registry.read(file), "mine")
    assert traced["a KV token"] == f"{3 * 2 * 2 * 16 * 4 / 1024:.1f} KiB"
    by_path = told(capsys, Registry.read(file), str(weights))
    assert by_path["model"] == f"weights, {weights}"
    assert by_path["fits"].endswith(" full contexts, without the largest step")


def test_an_entry_that_states_nothing_is_traced_for_the_list(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text('[here]\nsource = "builtin"\ndtype = "float32"\n')
    (here,) = models.list_models(Registry.read(file), at(LOTS, device="cpu"))
    assert (here.token_bytes, here.context_length, here.fit) == (6144, 2048, Fit.FULL)


def test_a_gguf_file_can_be_loaded(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    save_gguf(file)
    found = models.examine(Registry({}, tmp_path).find(str(file)), at(LOTS, device="cpu"))
    assert (found.loads_here, found.reason) == (True, "")
    assert found.weight_bytes is not None
    assert found.weight_bytes > file.stat().st_size / 2
    assert (found.name, found.context_length) == ("tiny", 256)
    file.write_bytes(file.read_bytes()[:-1000])
    cut = models.examine(Registry({}, tmp_path).find(str(file)), at(LOTS, device="cpu"))
    assert not cut.loads_here
    assert cut.reason.startswith(f"{file} is truncated: ")


@pytest.mark.usefixtures("_small")
def test_one_model_that_is_not_here_is_told_by_what_its_entry_states(
    registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    stated = told(capsys, registry, "told")
    assert stated["weights"] == "3.8 MiB, by what the registry states"
    assert stated["free memory"] == "7.6 MiB on host, of which it may take 5.7 MiB"
    assert stated["fits"] == "10 full contexts, without the largest step"
    assert stated["thinking"] == "begins each reply, by what the registry states"
    assert told(capsys, registry, "far")["fits"] == "known after the download"
    assert told(capsys, registry, "here")["fits"] == "no"
    assert "truncated" in told(capsys, registry, "cut")["cannot be loaded"]


def test_quantized_weights_are_counted_as_they_are_served(registry: Registry) -> None:
    host = models.Place(memory=Memory("host", LOTS, LOTS), settings=Settings(quantize="int8"))
    listings = models.list_models(registry, host)
    here, *_, far, stated = listings
    # The head is the embedding, too; norms stay as they are.
    assert (here.quantize, here.loading_bytes, here.is_about) == ("int8", 18_496_000, False)
    assert here.weight_bytes == pytest.approx(18_496_000 / 4, rel=0.03)
    assert (far.weight_bytes, far.is_about) == (None, True)
    assert (stated.weight_bytes, stated.is_about) == (1_015_625, True)
    lines = models.to_table(listings).splitlines()
    assert lines[0].split()[-2:] == ["quantized", "source"]
    row = next(line for line in lines if line.startswith("told"))
    assert "about 991.8 KiB  " in row
    assert "  1000     int8       batchdeck-tests/nor-this" in row
    text = models.to_text(stated, host, 1)
    assert "about 991.8 KiB in int8, 3.8 MiB while it is loaded, by what the" in text


def test_an_entry_states_what_its_weights_are_quantized_to(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text('[here]\nsource = "builtin"\nquantize = "int4"\n')
    memory = Memory("host", LOTS, LOTS)
    for stated, width in ((None, "int4"), ("int8", "int8"), ("none", "none")):
        place = models.Place(memory=memory, settings=Settings(quantize=stated))
        (here,) = models.list_models(Registry.read(file), place)
        assert here.quantize == width
        assert ("quantized" in models.to_table([here]).splitlines()[0]) is (width != "none")


def test_what_cannot_be_quantized_cannot_be_loaded(registry: Registry) -> None:
    here, *_ = models.list_models(registry, at(LOTS, quantize="int8"))
    why = "weights are quantized on a processor only, and the device is cuda"
    assert (here.loads_here, here.reason) == (False, why)
    here, *_ = models.list_models(registry, at(LOTS, quantize="none"))
    assert here.loads_here


def test_a_name_that_there_is_not_is_a_wrong_setting(registry: Registry) -> None:
    with pytest.raises(SettingsError, match="model 'tolt' is unknown; close to it are told, of"):
        models.run(Settings(models=registry.path), "tolt", as_json=False)


def test_json_has_all_of_it(registry: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(models=registry.path)
    assert models.run(settings, as_json=True) == ExitCode.OK
    found = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in found] == ["here", "cut", "gone", "far", "told"]
    assert [entry["loads_here"] for entry in found] == [True, False, False, False, False]
    assert found[3]["availability"] == "needs download"
    assert [entry["begins_thinking"] for entry in found] == [*[False] * 4, True]


def test_the_memory_is_that_of_the_device_in_the_settings(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    install(monkeypatch, Gpu("GPU-1", used=0, total=LOTS), Gpu("GPU-2", used=0, total=1 << 20))
    for device, loads in ((None, True), ("cuda:0", True), ("cuda:1", False), ("cpu", True)):
        models.run(Settings(models=registry.path, device=device), as_json=True)
        assert json.loads(capsys.readouterr().out)[0]["loads_here"] is loads


def test_a_broken_registry_is_a_wrong_setting(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text("[x\n")
    with pytest.raises(SettingsError, match=r"models\.toml is no TOML"):
        models.run(Settings(models=file), as_json=False)


def test_the_list_is_made_without_torch(own_process: Path) -> None:
    code = (
        "import sys\nfrom app.commands.cli import main\n"
        "try:\n    main()\n"
        "finally:\n    assert not {'torch', 'transformers', 'textual'} & set(sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code, "models"], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "builtin" in ran.stdout
