"""Models that were loaded before: a program of a saved graph, with no model built for it."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from engine.api.errors import ModelError
from engine.api.sampling import SamplingParams
from engine.batch.plan import NewSequence, Row, StepPlan
from engine.model.checks import verdicts
from engine.model.files.meter import Meter
from engine.model.loading import loader, packed
from engine.model.loading.packed import MappedWeights, PackedFile
from engine.model.machine.device import loading_dtype
from engine.serving.loading import LoadedModel
from tests.support.checkpoints import save_checkpoint
from tests.support.gguf_files import save_gguf
from tests.support.loading import Recorded, load
from tests.support.native import EACH_LEVEL, at_level, kernels_or_skip
from tests.support.zoo import SERVED

native = kernels_or_skip()
pytestmark = pytest.mark.usefixtures("encodes_here", "short_scripts")

THREAD = threading.Thread

# Experts that transformers merges from a weight for each are no stored weights.
MERGED = {"mixtral", "qwen3_moe"}


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of verdicts, for a test alone."""
    monkeypatch.setattr("engine.model.files.kept.KEPT", True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "batchdeck" / "verdicts"


@pytest.fixture(autouse=True)
def storing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed weights are stored by the time that `load` returns."""

    class Now(THREAD):
        def start(self) -> None:
            super().start()
            if self.name == "engine-packed":
                self.join()

    monkeypatch.setattr(threading, "Thread", Now)


@pytest.fixture
def packings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A word for each load: whether packed weights were mapped or stored."""
    done: list[str] = []

    def noting(name: str, function: Any) -> Any:
        def noted(*args: Any) -> Any:
            done.append(name)
            return function(*args)

        return noted

    monkeypatch.setattr(MappedWeights, "unmap", noting("mapped", MappedWeights.unmap))
    monkeypatch.setattr(packed, "store", noting("stored", packed.store))
    return done


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


def packed_files(kept: Path) -> list[Path]:
    return sorted((kept.parent / "packed").glob("*/*"))


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


# Packing alone depends on the type, and it is the same for all architectures.
@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "bfloat16") for name in sorted(SERVED)), ("llama", "float32"), ("gpt2", "float32")],
)
def test_a_folder(
    name: str, dtype: str, tmp_path: Path, built: list[str], packings: list[str]
) -> None:
    save_checkpoint(tmp_path / "model", name, dtype=getattr(torch, dtype))
    same_twice(tmp_path / "model", dtype=dtype)
    # Where torch has no bfloat16, weights stay as they are stored, which merged ones cannot.
    cpu, wanted = torch.device("cpu"), getattr(torch, dtype)
    attempts = 1 if loading_dtype(wanted, cpu) == wanted else 2
    assert len(built) == (2 * attempts if name in MERGED else 1)
    assert packings == ([] if name in MERGED else ["stored", "mapped"])


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


def test_packed_weights_serve_every_context_length(
    tmp_path: Path, kept: Path, packings: list[str]
) -> None:
    save_checkpoint(tmp_path / "model")
    for length in (64, 128, 64, 128):
        load(tmp_path / "model", max_model_len=length).close()
    assert len(list(kept.iterdir())) == 2
    assert len(packed_files(kept)) == 1
    assert packings == ["stored", "mapped", "mapped"]


@pytest.mark.parametrize("are_kept", [False, True])
def test_reading_is_counted(are_kept: bool, tmp_path: Path, kept: Path) -> None:
    save_checkpoint(tmp_path / "model")
    load(tmp_path / "model").close()
    if not are_kept:
        shutil.rmtree(kept.parent / "packed")
    told = Recorded()
    load(tmp_path / "model", told).close()
    loading = [done for detail, done, _ in told.calls if detail == "loading weights"]
    assert loading == sorted(loading)
    assert len(loading) > 2
    (total,) = {total for detail, _, total in told.calls if detail == "loading weights"}
    assert loading[-1] == total


def test_a_model_with_states_is_built_each_time(tmp_path: Path, built: list[str]) -> None:
    save_checkpoint(tmp_path / "model", "lfm2")
    same_twice(tmp_path / "model")
    assert len(built) == 2


def test_other_weights_in_a_file_that_looks_the_same_are_found(
    tmp_path: Path, kept: Path, built: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "model"
    save_checkpoint(folder)
    load(folder).close()
    file = folder / "model.safetensors"
    before = file.stat()
    shutil.rmtree(kept.parent / "packed")
    with file.open("r+b") as changed:  # in its place, so that it is the same file
        changed.seek(before.st_size // 2)
        changed.write(bytes(before.st_size // 4))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    loaded = load(folder)
    assert "checked again: MismatchError: the graph gives other logits than before" in caplog.text
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
    assert "checked again" in caplog.text
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


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def move_a_piece(file: Path) -> None:
    heading, _, rest = file.read_bytes().partition(b"\n")
    stated = json.loads(heading)
    first = next(one for one in stated["sizes"] if one)
    stated["sizes"][stated["sizes"].index(first)] = first - 64
    file.write_bytes(json.dumps(stated).encode().ljust(len(heading)) + b"\n" + rest[:-64])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (damage, "was changed"),
        (cut, "it is truncated"),
        (move_a_piece, "bytes in the cache"),
        (lambda file: file.write_bytes(b"no JSON\n"), "cannot be used"),
        (lambda file: file.write_bytes(b'{"sizes": 3, "sums": [], "build": ""}\n'), "cannot be"),
    ],
)
def test_packed_weights_that_were_changed_are_not_used(
    change: Callable[[Path], object],
    words: str,
    tmp_path: Path,
    kept: Path,
    packings: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    save_checkpoint(tmp_path / "model")
    first = load(tmp_path / "model")
    expected = logits(first)
    first.close()
    (file,) = packed_files(kept)
    change(file)
    for _ in range(2):
        again = load(tmp_path / "model")
        assert torch.equal(logits(again), expected)
        again.close()
    assert words in caplog.text
    assert packings[0] == "stored"
    assert packings[-2:] == ["stored", "mapped"]  # the second load finds good ones


def test_packed_weights_of_another_build_are_removed(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for build in ("first", "second"):
        monkeypatch.setattr("engine.model.files.kept.build", lambda build=build: build)
        for model in ("one", "other"):
            save_checkpoint(tmp_path / model)
            load(tmp_path / model).close()
        assert [PackedFile.open(one).build for one in packed_files(kept)] == [build] * 2


@pytest.mark.parametrize("name", ["_MOST_BYTES", "_MOST_OF_FREE"])
def test_packed_weights_without_space_are_not_stored(
    name: str, tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, name, 1 if name == "_MOST_BYTES" else 1e-12)
    save_checkpoint(tmp_path / "model")
    load(tmp_path / "model").close()
    assert packed_files(kept) == []


def test_the_oldest_packed_weights_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = [torch.zeros(8192, dtype=torch.uint8)]
    files = [tmp_path / "packed" / model / "key.weights" for model in "abc"]
    for number, file in enumerate(files):
        packed.store(file, pieces, lambda: True)
        os.utime(file, (number, number))
    monkeypatch.setattr(packed, "_MOST_BYTES", 3 * files[0].stat().st_size)
    assert packed.find(files[0]) is not None  # is a use
    packed.store(tmp_path / "packed" / "d" / "key.weights", pieces, lambda: True)
    assert [file.exists() for file in files] == [True, False, True]


def test_a_model_that_is_closed_stores_nothing(tmp_path: Path) -> None:
    pieces = [torch.zeros(64, dtype=torch.uint8)]
    file = tmp_path / "packed" / "model" / "key.weights"
    packed.store(file, pieces, lambda: False)
    assert list(file.parent.iterdir()) == []
    packed.store(file, pieces, lambda: True)
    assert packed.find(file) is not None


def test_closing_a_model_waits_until_nothing_of_its_weights_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = False

    def keep(path: Path, pieces: Any, is_wanted: Callable[[], bool]) -> None:
        nonlocal ended
        while is_wanted():
            pass
        ended = True

    monkeypatch.setattr(threading, "Thread", THREAD)
    monkeypatch.setattr(packed, "store", keep)
    save_checkpoint(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert not ended
    loaded.close()
    assert ended


def test_files_that_no_program_finishes_are_removed(tmp_path: Path) -> None:
    pieces = [torch.zeros(64, dtype=torch.uint8)]
    folder = tmp_path / "packed"
    first = folder / "model" / "key.weights"
    packed.store(first, pieces, lambda: True)
    gone, going = first.with_suffix(f".{1 << 30}"), first.with_suffix(f".{os.getppid()}")
    for one in (gone, going):
        shutil.copy(first, one)
    packed.store(folder / "other" / "key.weights", pieces, lambda: True)
    assert (first.exists(), gone.exists(), going.exists()) == (True, False, True)


def test_memory_replaces_the_file_while_others_read_it(tmp_path: Path) -> None:
    piece = torch.arange(5 << 20, dtype=torch.int32).view(torch.uint8)  # more than moves at once
    file = tmp_path / "packed" / "model" / "key.weights"
    packed.store(file, [piece, None, piece[:100]], lambda: True)
    found = packed.find(file)
    assert found is not None
    mapped = found.map(native, Meter("reading", found.num_bytes, lambda *_: None))
    assert mapped is not None
    first, second, last = mapped.pieces
    assert first is not None
    assert last is not None
    over, sums = threading.Event(), set()

    def read() -> None:
        while not over.is_set():
            sums.add(int(first.view(torch.int64).sum()))

    reader = threading.Thread(target=read)
    reader.start()
    mapped.unmap(lambda: True)
    over.set()
    reader.join()
    file.write_bytes(b"")
    assert sums == {int(piece.view(torch.int64).sum())}
    assert torch.equal(first, piece)
    assert torch.equal(last, piece[:100])
    assert second is None


def test_a_load_that_fails_late_leaves_no_thread_that_holds_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packings: list[str]
) -> None:
    def refuse(*args: object) -> None:
        raise ModelError("no structures")

    monkeypatch.setattr(loader, "Grammars", refuse)
    save_checkpoint(tmp_path / "model", "llama", dtype=torch.bfloat16)
    with pytest.raises(ModelError, match="no structures"):
        load(tmp_path / "model", dtype="bfloat16")
    assert not packings
