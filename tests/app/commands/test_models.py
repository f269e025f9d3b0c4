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
from engine.builtin import MODEL_DIR
from engine.model.registry import Registry
from tests.support.nvml import Gpu, install

LOTS = 1 << 40


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    shutil.copytree(MODEL_DIR, tmp_path / "cut")
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    file = tmp_path / "models.toml"
    file.write_text(
        '[here]\nsource = "builtin"\ncontext_length = 512\n'
        '[cut]\nsource = "./cut"\n'
        '[gone]\nsource = "./gone"\n'
        '[far]\nsource = "batchdeck-tests/not-on-this-machine"\ndtype = "bfloat16"\n'
    )
    return Registry.read(file)


def test_each_entry_says_whether_it_can_be_loaded_here(registry: Registry) -> None:
    here, cut, gone, far = models.list_models(registry, LOTS)
    assert (here.loads_here, here.reason, here.context_length) == (True, "", 512)
    assert here.weight_bytes is not None
    assert 0 < here.weight_bytes < (MODEL_DIR / "model.safetensors").stat().st_size
    assert not cut.loads_here
    assert "truncated" in cut.reason
    assert not gone.loads_here
    assert "gone has neither model.safetensors nor" in gone.reason
    assert (far.loads_here, far.availability, far.weight_bytes) == (False, "needs download", None)
    assert "downloaded when it is first loaded" in far.reason


def test_weights_beyond_the_free_memory_are_told_with_the_numbers(registry: Registry) -> None:
    here = models.list_models(registry, 1 << 20)[0]
    assert not here.loads_here
    assert here.reason == "its weights take 8.8 MiB, of memory 1.0 MiB are free"


def test_the_table_and_its_reasons(registry: Registry) -> None:
    lines = models.to_table(models.list_models(registry, LOTS)).splitlines()
    assert lines[0].split() == ["name", "here", "weights", "dtype", "context", "source"]
    assert lines[1].split()[:6] == ["here", "yes", "8.8", "MiB", "auto", "512"]
    assert lines[4].split()[:4] == ["far", "after", "download", "bfloat16"]
    assert lines[5].startswith("cut cannot be loaded: ")
    assert lines[6].startswith("gone cannot be loaded: ")
    assert len(lines) == 7


def test_json_has_all_of_it(registry: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(models=registry.path)
    assert models.run(settings, as_json=True) == ExitCode.OK
    found = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in found] == ["here", "cut", "gone", "far"]
    assert [entry["loads_here"] for entry in found] == [True, False, False, False]
    assert found[3]["availability"] == "needs download"


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
