"""Models that were loaded before: a program of a saved graph, with no model built for it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from engine.api.sampling import SamplingParams
from engine.batch.plan import NewSequence, Row, StepPlan
from engine.model import loader, verdicts
from engine.serving.loading import LoadedModel
from tests.support.checkpoints import save_checkpoint
from tests.support.gguf_files import save_gguf
from tests.support.loading import Recorded, load
from tests.support.native import EACH_LEVEL, at_level, kernels_or_skip
from tests.support.zoo import SERVED

kernels_or_skip()
pytestmark = pytest.mark.usefixtures("encodes_here", "short_scripts")

# Experts that transformers merges from a weight for each are no stored weights.
MERGED = {"mixtral", "qwen3_moe"}


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of verdicts, for a test alone."""
    monkeypatch.setattr(verdicts, "KEPT", True)
    monkeypatch.setattr(verdicts, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache" / "verdicts"


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A name for each model that is built while weights are loaded."""
    names: list[str] = []
    load_weights = loader.load_weights

    def noting(model_class: Any, *args: Any, **kwargs: Any) -> Any:
        names.append(model_class.__name__)
        return load_weights(model_class, *args, **kwargs)

    monkeypatch.setattr(loader, "load_weights", noting)
    return names


def logits(loaded: LoadedModel) -> torch.Tensor:
    """Of the last of 20 tokens, from an empty cache."""
    runner: Any = loaded.runner
    ids = tuple(range(3, 23))
    plan = StepPlan(
        1,
        (Row(0, 0, len(ids), (1, 2), True, True),),
        new=(NewSequence(0, ids, len(ids), SamplingParams(), 0, (), ()),),
    )
    return torch.as_tensor(runner.logits(plan)).clone()


def same_twice(path: Path, **options: Any) -> None:
    first = load(path, **options)
    expected = logits(first)
    first.close()
    second = load(path, **options)
    assert (second.card, second.shape, second.config) == (first.card, first.shape, first.config)
    assert torch.equal(logits(second), expected)
    second.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", sorted(SERVED))
def test_a_folder(name: str, dtype: str, tmp_path: Path, built: list[str]) -> None:
    save_checkpoint(tmp_path / "model", name, dtype=getattr(torch, dtype))
    same_twice(tmp_path / "model", dtype=dtype)
    assert len(built) == (2 if name in MERGED else 1)


@pytest.mark.parametrize("level", EACH_LEVEL)
@pytest.mark.parametrize(
    ("name", "kind", "is_tied"),
    [("llama", "Q4_1", True), ("qwen2", "Q5_0", False), ("qwen3_moe", "Q8_0", False)],
)
def test_a_file(
    name: str, kind: str, is_tied: bool, level: str, tmp_path: Path, built: list[str]
) -> None:
    save_gguf(tmp_path / "model.gguf", name, kind, is_tied=is_tied)
    with at_level(level):
        same_twice(tmp_path / "model.gguf", dtype=None)
        assert len(built) == 1
        # A verdict is of one level.
        load(tmp_path / "model.gguf", dtype="float32").close()
    assert len(built) == 2


def test_weights_are_read_as_they_are_packed(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "model")
    load(tmp_path / "model").close()
    told = Recorded()
    load(tmp_path / "model", told).close()
    loading = [done for detail, done, _ in told.calls if detail == "loading weights"]
    assert loading == sorted(loading)
    assert len(loading) > 8
    (total,) = {total for detail, _, total in told.calls if detail == "loading weights"}
    assert loading[-1] == total


def test_a_model_with_states_is_built_each_time(tmp_path: Path, built: list[str]) -> None:
    save_checkpoint(tmp_path / "model", "lfm2")
    same_twice(tmp_path / "model")
    assert len(built) == 2


def test_other_weights_in_a_file_that_looks_the_same_are_found(
    tmp_path: Path, built: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "model"
    save_checkpoint(folder)
    load(folder).close()
    file = folder / "model.safetensors"
    before = file.stat()
    with file.open("r+b") as changed:  # in its place, so that it is the same file
        changed.seek(before.st_size // 2)
        changed.write(bytes(before.st_size // 4))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    loaded = load(folder)
    assert "checked anew: MismatchError: the graph gives other logits than before" in caplog.text
    assert len(built) == 2
    loaded.close()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("operations", 0, 0), "Opaque"),
        (("operations", 0), ["Norm", 3]),
        (("operations", 2, 1), ["value", 10_000]),
        (("operations", 2, 5), "no activation"),
        (("logits",), 7),
        (("values", 0, 2), "Tensor"),
        (("tensors", 0), ["no such weight", 0, [1, 1], [1, 1]]),
        (("tensors", 0, 1), 1 << 40),
        (("tensors", 0, 2), [48, 48]),
        (("tensors",), None),
    ],
    ids=str,
)
def test_a_graph_that_does_not_fit_is_not_used(
    path: tuple[Any, ...],
    value: Any,
    tmp_path: Path,
    kept: Path,
    built: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    save_checkpoint(tmp_path / "model")
    first = load(tmp_path / "model")
    expected = logits(first)
    first.close()
    (file,) = kept.iterdir()
    with safe_open(file, "pt") as opened:
        stated = json.loads(opened.metadata()["verdict"])
    at = stated["layout"]
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    save_file(load_file(file), file, {"verdict": json.dumps(stated)})
    second = load(tmp_path / "model")
    assert torch.equal(logits(second), expected)
    assert len(built) == 2
    assert "checked anew" in caplog.text
    second.close()


def test_tensors_that_were_changed_are_not_used(tmp_path: Path, kept: Path) -> None:
    save_checkpoint(tmp_path / "model")
    load(tmp_path / "model").close()
    (file,) = kept.iterdir()
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    assert verdicts.find(file.stem) is not None
    tensors = load_file(file)
    tensors["0"] = tensors["0"] + 1
    save_file(tensors, file, metadata)
    assert verdicts.find(file.stem) is None
