"""Verdicts: a model that passed its checks passes them no second time, until something changes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from engine.api.status import QuantizationLoss
from engine.model.checks import coding, gate, verdicts
from engine.model.checks.verdicts import Verdict
from engine.model.program import forward
from engine.model.program.verify import Wrong, mismatch
from tests.support.gguf_files import save_gguf
from tests.support.loading import load
from tests.support.native import kernels_or_skip

kernels_or_skip()
pytestmark = pytest.mark.usefixtures("encodes_here")

FOUND = Verdict(
    (Wrong(3, "linear", 64, "differs from the model by 0.5"),), QuantizationLoss(256, 0.97, 0.01)
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where verdicts are kept, for a test alone."""
    monkeypatch.setattr("engine.model.files.kept.KEPT", True)
    monkeypatch.setattr("engine.model.files.kept.cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache" / "verdicts"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model" / "model.gguf"
    path.parent.mkdir()
    save_gguf(path, "llama", "Q4_1")
    return path


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which checks were made, in order."""
    made: list[str] = []

    def watch(module: Any, name: str) -> None:
        function = getattr(module, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            made.append(name)
            return function(*args, **kwargs)

        monkeypatch.setattr(module, name, watched)

    watch(gate, "_check_class")
    watch(coding, "LossProbe")
    watch(forward, "verify")
    return made


def test_a_verdict_is_found_again() -> None:
    assert verdicts.find("key") is None
    verdicts.store("key", FOUND)
    assert verdicts.find("key") == FOUND
    verdicts.store("key", replace(FOUND, loss=None))
    assert verdicts.find("key") == replace(FOUND, loss=None)
    assert verdicts.find("other") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"apart": [], "loss": 3}',
        '{"apart": [{"at": "0"}], "loss": null}',
        '{"apart": [{"at": "0", "kind": "norm", "columns": 3, "reason": ""}], "loss": null}',
        '{"apart": [], "loss": {"tokens": "many", "equal_best": 1, "divergence": 0}}',
    ],
)
def test_a_broken_verdict_is_none(
    folder: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder.mkdir(parents=True)
    save_file({}, folder / "key.safetensors", {"verdict": text})
    assert verdicts.find("key") is None
    assert "the model is checked again" in caplog.text


def test_the_oldest_verdicts_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts.store("first", FOUND)
    size = (folder / "first.safetensors").stat().st_size
    monkeypatch.setattr(verdicts, "_MOST_BYTES", 2 * size)
    for at, key in enumerate(("first", "second", "third")):
        verdicts.store(key, FOUND)
        os.utime(folder / f"{key}.safetensors", (at, at))
    verdicts.store("fourth", FOUND)
    assert {one.name for one in folder.iterdir()} == {"third.safetensors", "fourth.safetensors"}


def test_a_folder_that_cannot_be_written_costs_the_verdict_only(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.parent.mkdir()
    folder.write_text("no folder")
    verdicts.store("key", FOUND)
    assert "cannot be kept" in caplog.text


def test_a_key_is_another_one_for_another_file_or_other_facts(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"12")
    key = verdicts.key_of([file], "bfloat16")
    assert verdicts.key_of([file, file], "bfloat16") == key
    assert verdicts.key_of([file], "float32") != key
    found = file.stat()
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns + 1))
    assert verdicts.key_of([file], "bfloat16") != key


def test_a_second_loading_compares_operations_only(
    file: Path, checks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "save_graph", lambda graph, weights: None)
    first = load(file, dtype=None)
    assert {"_check_class", "LossProbe", "verify"} <= set(checks)
    checks.clear()
    second = load(file, dtype=None)
    assert checks == ["verify"]
    assert (second.card, second.shape) == (first.card, first.shape)
    os.utime(file)
    checks.clear()
    load(file, dtype=None).close()
    assert {"_check_class", "LossProbe"} <= set(checks)
    first.close()
    second.close()


def test_operations_that_torch_computes_are_known_the_next_time(
    file: Path, checks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    verify, wrong = forward.verify, Wrong(2, "attend", 64, "differs from the model by 0.5")

    def differing(stages: Any, *args: Any, **kwargs: Any) -> float:
        found = verify(stages, *args, **kwargs)
        operation = stages[wrong.at].operation
        if type(operation).__name__ != "ByTorch" and len(checks) > 2:  # of the model itself
            at = next(
                at for at, stage in enumerate(stages) if type(stage.operation).__name__ == "Attend"
            )
            if all(type(one.operation).__name__ != "ByTorch" for one in stages):
                raise mismatch([replace(wrong, at=at, columns=stages[at].operation.out.width)])
        return found

    monkeypatch.setattr(forward, "verify", differing)
    monkeypatch.setattr(forward, "save_graph", lambda graph, weights: None)
    first = load(file, dtype=None)
    assert first.card.num_off_path == 1
    checks[:] = ["_check_class", "LossProbe", "verify"]  # what the first loading made
    second = load(file, dtype=None)
    assert second.card.num_off_path == 1
    assert checks.count("verify") == 2  # the weights were read once
    first.close()
    second.close()
