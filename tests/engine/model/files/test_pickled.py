"""Tensors of `pytorch_model.bin`: where they lie, and that nothing of the file is carried out."""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

from engine.api.errors import ModelError
from engine.model.files.checkpoint import PICKLED_FILE, SINGLE_FILE, has_weights, open_checkpoint
from engine.model.files.pickled import read_pickled
from tests.support.checkpoints import save_checkpoint
from tests.support.loading import load, weights_of

TENSORS = {
    "a": torch.arange(6, dtype=torch.float32).view(2, 3),
    "b": torch.arange(5, dtype=torch.bfloat16),
    "half": torch.arange(7, dtype=torch.float16)[2:],  # it begins within its storage
    "ids": torch.arange(3),
    "bytes": torch.arange(3, dtype=torch.uint8),
    "is": torch.tensor([True, False]),
    "empty": torch.zeros(0, 4),
    "scalar": torch.tensor(7.0),
    "one row": torch.zeros(4, 1).T,
}


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        open_checkpoint(folder)
    assert "\n" not in caught.value.message
    return caught.value.message


def save(folder: Path, what: Any) -> Path:
    torch.save(what, folder / PICKLED_FILE)
    return folder


def archive(folder: Path, data: bytes, how: int = zipfile.ZIP_STORED) -> Path:
    """An archive with a pickle of one's own, and a storage of 16 bytes."""
    with zipfile.ZipFile(folder / PICKLED_FILE, "w") as file:
        file.writestr("x/data.pkl", data, how)
        file.writestr("x/data/0", bytes(16), how)
    return folder


@pytest.mark.parametrize("wrap", [dict, OrderedDict])
def test_describes_what_torch_wrote(tmp_path: Path, wrap: Callable[[Any], Any]) -> None:
    checkpoint = open_checkpoint(save(tmp_path, wrap(TENSORS)))
    raw = (tmp_path / PICKLED_FILE).read_bytes()
    stored = {tensor.name: tensor for tensor in checkpoint.tensors}
    assert stored.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        one = stored[name]
        assert one.shape == tuple(tensor.shape)
        expected = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        assert raw[one.offset : one.offset + one.num_bytes] == expected, name
    assert [stored[name].dtype for name in ("a", "b", "half", "ids", "bytes", "is")] == [
        *("F32", "BF16", "F16", "I64", "U8", "BOOL")
    ]


def test_parameters_and_the_state_of_modules_are_tensors(tmp_path: Path) -> None:
    module = nn.Linear(2, 3)
    found = open_checkpoint(save(tmp_path, module.state_dict())).tensors
    assert {(one.name, one.shape) for one in found} == {("weight", (3, 2)), ("bias", (3,))}
    found = open_checkpoint(save(tmp_path, dict(module.named_parameters()))).tensors
    assert {(one.name, one.shape) for one in found} == {("weight", (3, 2)), ("bias", (3,))}


@pytest.mark.usefixtures("encodes_here", "modules")
@pytest.mark.parametrize("shards", [1, 2])
def test_a_model_is_loaded_from_pickles(tmp_path: Path, shards: int) -> None:
    expected = save_checkpoint(tmp_path).state_dict()
    stored = load_file(tmp_path / SINGLE_FILE)
    (tmp_path / SINGLE_FILE).unlink()
    assert not has_weights(tmp_path)
    if shards == 1:
        save(tmp_path, stored)
    else:
        names = {name: f"pytorch_model-{i % 2}.bin" for i, name in enumerate(stored)}
        for file in set(names.values()):
            torch.save({n: stored[n] for n in names if names[n] == file}, tmp_path / file)
        (tmp_path / f"{PICKLED_FILE}.index.json").write_text(
            '{"weight_map": ' + str(names).replace("'", '"') + "}"
        )
    assert has_weights(tmp_path)
    loaded = load(tmp_path)
    found = weights_of(loaded).state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    loaded.close()


def test_tied_weights_have_two_names(tmp_path: Path) -> None:
    table = torch.randn(64, 64)
    checkpoint = open_checkpoint(save(tmp_path, {"head": table, "table": table}))
    assert len({one.offset for one in checkpoint.tensors}) == 1
    save(tmp_path, {str(i): table for i in range(99)})
    assert "its tensors have more than twice its bytes" in refusal(tmp_path)


class Evil:
    """An object that runs a command when its pickle is executed."""

    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["EVIL"],)


@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
def test_nothing_that_a_file_says_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    monkeypatch.setenv("EVIL", str(tmp_path / "was called"))
    data = pickle.dumps({"a": Evil()}, protocol)
    assert f"{tmp_path / PICKLED_FILE} holds more than tensors" in refusal(archive(tmp_path, data))
    assert not (tmp_path / "was called").exists()
    pickle.loads(data)
    assert (tmp_path / "was called").exists()  # it would have been


GLOBAL = b"c%s\n%s\n"
TENSOR = GLOBAL % (b"torch._utils", b"_rebuild_tensor_v2")
STORAGE = b"(X\x07\0\0\0storage" + GLOBAL % (b"torch", b"FloatStorage")
STORAGE += b"X\x01\0\0\0%bX\x03\0\0\0cpuK\x04tQ"


def described(shape: bytes, stride: bytes, *, offset: bytes = b"K\0", key: bytes = b"0") -> bytes:
    """A dictionary of one tensor, as torch pickles it."""
    return (
        b"\x80\x02}X\x01\0\0\0a"
        + TENSOR
        + b"("
        + STORAGE % key
        + offset
        + shape
        + stride
        + b"\x89)tRs."
    )


PICKLES = [
    (described(b"K\x02K\x02\x86", b"K\x02K\x01\x86"), ""),
    (described(b"K\x04\x85", b"K\x01\x85", offset=b"K\x01"), "more than its storage holds"),
    (described(b"K\x05\x85", b"K\x01\x85"), "more than its storage holds"),
    (described(b"K\x04\x85", b"K\x01\x85", key=b"7"), "no storage '7', as it is"),
    (described(b"K\x02K\x02\x86", b"K\x01K\x02\x86"), "with gaps or turned"),
    (described(b"K\x04\x85", b")"), "described in another way"),
    (described(b"J\xff\xff\xff\xff\x85", b"K\x01\x85"), "described in another way"),
    (described(b"G" + bytes(8) + b"\x85", b"K\x01\x85"), "described in another way"),
    (b"\x80\x02}K\x01K\x01s.", "its pickle is broken"),
    (b"\x80\x02}" + b")" + b"\x85" * 100_000 + b"K\x01s.", "its pickle is broken"),
    (b"\x80\x02](K\x01K\x02e.", "holds no tensors by their names"),
    (b"\x80\x02}r\xff\xff\xff\x7f.", "without any tensor"),
    (b"\x80\x02}0", "the instruction POP"),
    (b"\x80\x02h\x07.", "its pickle is broken"),
    (b"\x80\x02", "its pickle is broken"),
    (b"\x80\x02e.", "its pickle is broken"),
    (b"", "its pickle is broken"),
    (b"\xff\xfe", "its pickle is broken"),
]


@pytest.mark.parametrize(
    ("data", "reason"), PICKLES, ids=[reason or "as torch has it" for _, reason in PICKLES]
)
def test_pickles_of_one_s_own(tmp_path: Path, data: bytes, reason: str) -> None:
    archive(tmp_path, data)
    if reason:
        assert reason in refusal(tmp_path)
    else:
        (found,) = open_checkpoint(tmp_path).tensors
        assert (found.name, found.shape, found.num_bytes) == ("a", (2, 2), 16)


@given(data=st.data())
def test_a_changed_file_never_escapes_as_another_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = save(tmp_path_factory.mktemp("changed"), TENSORS)
    raw = bytearray((folder / PICKLED_FILE).read_bytes())
    said, directory = raw.index(b"\x80\x02"), raw.index(b"PK\1\2")
    length = raw.index(b"PK\3\4", said) - said
    places = st.integers(0, said + length - 1) | st.integers(directory, len(raw) - 1)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(places)] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):  # what is read is what is said, and not what a sum would tell
        with zipfile.ZipFile(folder / PICKLED_FILE, "w") as file:
            file.writestr("x/data.pkl", bytes(raw[said : said + length]))
            for i in range(len(TENSORS)):
                file.writestr(f"x/data/{i}", bytes(64))
    else:
        (folder / PICKLED_FILE).write_bytes(raw)
    size = (folder / PICKLED_FILE).stat().st_size
    with contextlib.suppress(ModelError):
        found = open_checkpoint(folder).tensors
        assert all(0 <= one.offset <= one.offset + one.num_bytes <= size for one in found)


def test_what_is_packed_is_not_unpacked(tmp_path: Path) -> None:
    archive(tmp_path, bytes(1 << 20), zipfile.ZIP_DEFLATED)
    assert "has no x/data.pkl of a usual size, as it is" in refusal(tmp_path)
    data = described(b"K\x02K\x02\x86", b"K\x02K\x01\x86")
    with zipfile.ZipFile(tmp_path / PICKLED_FILE, "w") as file:
        file.writestr("x/data.pkl", data)
        file.writestr("x/data/0", bytes(16), zipfile.ZIP_DEFLATED)
    assert "no storage '0', as it is" in refusal(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_file_that_is_cut(tmp_path: Path, share: float) -> None:
    file = save(tmp_path, TENSORS) / PICKLED_FILE
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * share)])
    assert f"{file} is not an archive of torch, or is cut off (" in refusal(tmp_path)


def test_a_directory_of_a_size_that_nobody_needs(tmp_path: Path) -> None:
    file = tmp_path / PICKLED_FILE
    with file.open("wb") as stream:
        stream.truncate(1 << 32)  # a hole
        stream.seek(0, os.SEEK_END)
        stream.write(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, (1 << 32) - 2, 0, 0))
    assert "a part of it has more than" in refusal(tmp_path)


def test_a_file_from_before_torch_1_6(tmp_path: Path) -> None:
    torch.save(TENSORS, tmp_path / PICKLED_FILE, _use_new_zipfile_serialization=False)
    assert "have to be saved again, as safetensors" in refusal(tmp_path)


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_pickled(tmp_path / PICKLED_FILE)


def test_numbers_of_another_kind(tmp_path: Path) -> None:
    save(tmp_path, {"a": torch.zeros(2, dtype=torch.complex64)})
    assert "stores a as ComplexFloatStorage; read are FloatStorage, " in refusal(tmp_path)
    save(tmp_path, {"a": torch.zeros(2, dtype=torch.float8_e4m3fn)})
    assert "its pickle calls 'torch._utils _rebuild_tensor_v3'" in refusal(tmp_path)
