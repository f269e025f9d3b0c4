"""Headers of safetensors files: what is accepted, and what is refused by name."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from engine.api.errors import ModelError
from engine.model.files.checkpoint import INDEX_FILE, SINGLE_FILE, has_weights, open_checkpoint
from engine.model.files.stored import plain_weights
from tests.support.checkpoints import save_checkpoint

TENSORS = {
    "a": torch.arange(6, dtype=torch.float32).view(2, 3),
    "b": torch.arange(5, dtype=torch.bfloat16),
    "ids": torch.arange(3, dtype=torch.int64),
    "empty": torch.zeros(0, 4),
    "scalar": torch.tensor(7.0),
}


@pytest.fixture
def single(tmp_path: Path) -> Path:
    save_file(TENSORS, tmp_path / SINGLE_FILE)
    return tmp_path


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    save_checkpoint(folder, max_shard_size="100KB")
    return folder


@pytest.fixture
def shards(sharded: Path, tmp_path: Path) -> Path:
    """A copy that a test may break."""
    for file in sharded.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        open_checkpoint(folder)
    return caught.value.message


def test_describes_what_safetensors_wrote(single: Path) -> None:
    checkpoint = open_checkpoint(single)
    raw = (single / SINGLE_FILE).read_bytes()
    stored = {tensor.name: tensor for tensor in checkpoint.tensors}
    assert stored.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        entry = stored[name]
        assert entry.shape == tuple(tensor.shape)
        expected = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        assert raw[entry.offset : entry.offset + entry.num_bytes] == expected
    assert checkpoint.num_bytes == 24 + 10 + 24 + 0 + 4
    assert checkpoint.num_bytes_as(2) == 12 + 10 + 24 + 0 + 2
    assert checkpoint.dtype == "float32"


def test_shards_are_one_checkpoint(sharded: Path) -> None:
    files = sorted(sharded.glob("*.safetensors"))
    assert len(files) > 1
    checkpoint = open_checkpoint(sharded)
    expected = {name for file in files for name in load_file(file)}
    assert {tensor.name for tensor in checkpoint.tensors} == expected
    assert has_weights(sharded)


def test_fingerprint_changes_with_the_files(single: Path, sharded: Path) -> None:
    before = open_checkpoint(single).fingerprint
    assert before == open_checkpoint(single).fingerprint
    assert before != open_checkpoint(sharded).fingerprint
    save_file(TENSORS | {"a": torch.zeros(3, 2)}, single / SINGLE_FILE)
    assert open_checkpoint(single).fingerprint != before


def test_missing_weights_name_the_files_looked_for(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"{tmp_path} has neither {SINGLE_FILE} nor {INDEX_FILE}"


@pytest.mark.parametrize(
    "name", ["weights.bin", "model.pt", "weights.pth", "consolidated.safetensors"]
)
def test_other_formats_are_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"weights")
    assert f"holds its weights as {name}; loaded are {SINGLE_FILE}, " in refusal(tmp_path)


def test_missing_shard(shards: Path) -> None:
    shard = sorted(shards.glob("*.safetensors"))[1]
    shard.unlink()
    assert refusal(shards) == f"{shard} is missing; the index says it holds weights"
    assert not has_weights(shards)


def test_tensor_missing_from_its_shard(shards: Path) -> None:
    shard = sorted(shards.glob("*.safetensors"))[0]
    tensors = load_file(shard)
    lost = sorted(tensors)[0]
    del tensors[lost]
    save_file(tensors, shard)
    assert refusal(shards) == f"{shard} lacks the tensor {lost} that the index says it holds"


def test_index_cannot_leave_the_folder(shards: Path) -> None:
    (shards / INDEX_FILE).write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))
    assert "names the shard '../secret.safetensors'; it must lie in the same folder" in refusal(
        shards
    )


def test_storage_that_no_torch_type_has(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(4, dtype=torch.int8)}, tmp_path / SINGLE_FILE)
    file = tmp_path / SINGLE_FILE
    file.write_bytes(file.read_bytes().replace(b'"I8"', b'"I9"'))
    assert "stores w as I9; supported are BOOL, " in refusal(tmp_path)


def test_numbers_of_a_scale_are_not_read_without_it(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(4, dtype=torch.float8_e4m3fn)}, tmp_path / SINGLE_FILE)
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(ModelError, match="stores w as F8_E4M3, and nothing says by what it is sc"):
        list(plain_weights(checkpoint))


@given(share=st.floats(0, 1, exclude_max=True))
def test_any_truncation_is_refused(tmp_path_factory: pytest.TempPathFactory, share: float) -> None:
    folder = tmp_path_factory.mktemp("cut")
    save_file(TENSORS, folder / SINGLE_FILE)
    whole = (folder / SINGLE_FILE).read_bytes()
    (folder / SINGLE_FILE).write_bytes(whole[: int(len(whole) * share)])
    assert re.match(rf"{folder / SINGLE_FILE} is truncated", refusal(folder))


@given(data=st.data())
def test_a_changed_header_never_escapes_as_another_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("changed")
    save_file(TENSORS, folder / SINGLE_FILE)
    raw = bytearray((folder / SINGLE_FILE).read_bytes())
    header = 8 + int.from_bytes(raw[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, header - 1))] = data.draw(st.integers(0, 255))
    (folder / SINGLE_FILE).write_bytes(raw)
    with contextlib.suppress(ModelError):
        checkpoint = open_checkpoint(folder)
        size = len(raw)
        assert all(0 <= t.offset <= t.offset + t.num_bytes <= size for t in checkpoint.tensors)
