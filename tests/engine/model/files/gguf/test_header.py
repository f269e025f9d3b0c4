"""Headers of GGUF files: read as they were written, or refused in a sentence."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from engine.api.errors import ModelError
from engine.model.files.checkpoint import find_gguf
from engine.model.files.gguf import header
from engine.model.files.gguf.header import Header, read_header


@pytest.fixture(params=["by a kernel", "in Python"])
def joined(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strings are joined by a kernel, or without kernels."""
    if request.param == "in Python":
        monkeypatch.setattr(header, "kernels", lambda: None)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, sides: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    axes = struct.pack(f"<I{len(sides)}Q", len(sides), *sides)
    return text(name) + axes + struct.pack("<IQ", kind, offset)


def file(
    *tensors: bytes,
    pairs: tuple[bytes, ...] = (),
    start: bytes = b"GGUF" + struct.pack("<I", 3),
    counts: tuple[int, int] | None = None,
    data: bytes = bytes(64),
) -> bytes:
    counts = (len(tensors), len(pairs)) if counts is None else counts
    header = start + struct.pack("<QQ", *counts) + b"".join(pairs) + b"".join(tensors)
    return header + bytes(-len(header) % 32) + data


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read_header(path)
    return caught.value.message


def test_what_a_writer_wrote(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    values: dict[str, Any] = {
        "uint8": 200,
        "int8": -3,
        "uint16": 40_000,
        "int16": -300,
        "uint32": 1 << 31,
        "int32": -(1 << 31),
        "uint64": 1 << 63,
        "int64": -(1 << 62),
        "float32": 0.5,
        "float64": 1e300,
        "bool": True,
        "string": "é\0😀",
    }
    for kind, value in values.items():
        getattr(writer, f"add_{kind}")(f"a.{kind}", value)
    writer.add_array("a.texts", ["", "é", "😀"])
    writer.add_array("a.numbers", [1, -2])
    writer.add_array("a.truths", [True, False])
    writer.add_tensor("x", np.ones((2, 3), np.float32))
    writer.add_tensor("y", np.zeros((4, 36), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = read_header(path)
    assert {f"a.{kind}": value for kind, value in values.items()}.items() <= found.metadata.items()
    assert found.metadata["general.architecture"] == "llama"
    assert found.metadata["a.texts"].read() == ["", "é", "😀"]
    assert found.metadata["a.numbers"].tolist() == [1, -2]
    assert found.metadata["a.truths"].tolist() == [True, False]
    x, y = found.checkpoint.tensors
    assert (x.name, x.dtype, x.shape, x.num_bytes) == ("x", "F32", (2, 3), 24)
    assert (y.name, y.dtype, y.shape, y.num_bytes) == ("y", "Q4_0", (4, 64), 144)
    assert np.fromfile(path, "<f4", 6, offset=x.offset).tolist() == [1.0] * 6
    assert y.offset % 32 == 0


@pytest.mark.usefixtures("joined")
def test_texts_with_a_zero_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    texts = struct.pack("<IQ", 8, 3) + text("a\0b") + text("") + text("c")
    path.write_bytes(file(pairs=(pair("a", 9, texts),)))
    assert read_header(path).metadata["a"].read() == ["a\0b", "", "c"]


def test_a_value_for_people_need_not_be_utf8(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(file(pairs=(pair("author", 8, struct.pack("<Q", 3) + b"Ren\xe9"[1:]),)))
    assert read_header(path).metadata["author"] == "en\ufffd"


def test_the_fingerprint_is_of_the_header(tmp_path: Path) -> None:
    def fingerprint(*tensors: bytes, data: bytes = bytes(64)) -> str:
        path = tmp_path / "a.gguf"
        path.write_bytes(file(*tensors, data=data))
        return read_header(path).checkpoint.fingerprint

    assert fingerprint(tensor("x")) == fingerprint(tensor("x"), data=bytes(range(64)))
    assert fingerprint(tensor("x")) != fingerprint(tensor("y"))
    assert fingerprint(tensor("x")) != fingerprint(tensor("x"), data=bytes(96))


_HUGE = 1 << 62


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", " is empty"),
        (b"GG", " is no GGUF file: it begins with b'GG', not b'GGUF'"),
        (
            b"PK\x03\x04" + bytes(40),
            " is no GGUF file: it begins with b'PK\\x03\\x04', not b'GGUF'",
        ),
        (b"GGUF\x03\0", " is truncated or corrupt: its version would end beyond its 6 bytes"),
        (
            file(start=b"GGUF" + struct.pack("<I", 1)),
            " is of GGUF version 1; versions 2 and 3 are ",
        ),
        (file(start=b"GGUF" + struct.pack(">I", 3)), " is a big-endian GGUF file; only little-"),
        (file(counts=(_HUGE, 0)), f" is truncated or corrupt: {_HUGE} tensors and 0 keys would "),
        (file(counts=(0, _HUGE)), f" is truncated or corrupt: 0 tensors and {_HUGE} keys would "),
        (
            file(pairs=(pair("k", 9, struct.pack("<IQ", 0, _HUGE)),)),
            " is truncated or corrupt: k would end beyond its ",
        ),
        (
            file(pairs=(pair("k", 9, struct.pack("<IQ", 8, _HUGE)),)),
            " is truncated or corrupt: k would end beyond its ",
        ),
        (
            file(pairs=(pair("k", 9, struct.pack("<IQQ", 8, 2, _HUGE)),), data=bytes(200)),
            " is truncated or corrupt: k would end beyond its ",
        ),
        (
            file(pairs=(pair("k", 9, struct.pack("<IQQ", 8, 2, (1 << 64) - 1)),)),
            " is truncated or corrupt: k would end beyond its ",
        ),
        (
            file(pairs=(pair("k", 8, struct.pack("<Q", _HUGE)),)),
            " is truncated or corrupt: k would end beyond its ",
        ),
        (file(pairs=(pair("k", 13, b""),)), " is corrupt: k is of type 13, which GGUF does not "),
        (
            file(pairs=(pair("k", 9, struct.pack("<IQ", 9, 0)),)),
            " is corrupt: k is a list of type 9, which is not read",
        ),
        (
            file(pairs=(pair("k", 0, b"a"), pair("k", 0, b"b"))),
            " is corrupt: the key k stands there twice",
        ),
        (
            file(pairs=(struct.pack("<Q", 1) + b"\xff" + struct.pack("<IB", 0, 0),)),
            " is corrupt: a key is not UTF-8: b'\\xff'",
        ),
        (
            file(pairs=(pair("k", 9, struct.pack("<IQQ", 8, 1, 1) + b"\xff"),)),
            " is corrupt: k holds text that is not UTF-8",
        ),
        (
            file(pairs=(pair("general.alignment", 4, struct.pack("<I", 24)),)),
            " is corrupt: general.alignment is 24; it must be a power of two, such as 32",
        ),
        (
            file(pairs=(pair("general.alignment", 4, struct.pack("<I", 0)),)),
            " is corrupt: general.alignment is 0; it must be a power of two, such as 32",
        ),
        (
            file(tensor("x", (1, 1, 1, 1, 1))),
            " is corrupt: x has 5 sides; 4 are allowed",
        ),
        (file(tensor("x", ())), " is corrupt: x has the shape []; rows of F32 must be "),
        (
            file(tensor("x", (4, 2), kind=2)),
            " is corrupt: x has the shape [2, 4]; rows of Q4_0 must be multiples of 32",
        ),
        (file(tensor("x", kind=99)), " stores x as type 99, which is unknown; known are F32 (0), "),
        (
            file(tensor("x", offset=4)),
            " is corrupt: x begins at 4 of the tensors; it must be a multiple of 32",
        ),
        (file(tensor("x", (1 << 40,))), " is truncated: x ends at byte "),
        (file(tensor("x", (1 << 63, 1 << 63))), " is truncated: x ends at byte "),
        (file(tensor("x", offset=1 << 40)), " is truncated: x ends at byte "),
        (file(tensor("x"), tensor("x", offset=32)), " is corrupt: the tensor x stands there twice"),
        (
            file(tensor("x", (16,)), tensor("y", offset=32)),
            " and overlaps x",
        ),
    ],
)
@pytest.mark.usefixtures("joined")
def test_a_file_that_is_broken(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(content)
    message = refusal(path)
    assert message.startswith(str(path))
    assert sentence in message


@pytest.mark.usefixtures("joined")
def test_each_place_where_a_file_can_be_cut(tmp_path: Path) -> None:
    texts = struct.pack("<IQ", 8, 2) + text("a") + text("b")
    numbers = struct.pack("<IQ3f", 6, 3, 1, 2, 3)
    pairs = (pair("t", 9, texts), pair("n", 9, numbers), pair("s", 8, text("x")))
    content = file(tensor("x"), tensor("y", offset=32), pairs=pairs, data=bytes(48))
    path = tmp_path / "a.gguf"
    for length in range(len(content)):
        path.write_bytes(content[:length])
        assert str(path) in refusal(path)
    path.write_bytes(content)
    assert len(read_header(path).checkpoint.tensors) == 2


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("nothing")])
def test_what_is_no_file(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "a.gguf"
    make(path)
    assert str(path) in refusal(path)


class TestParts:
    def write(self, folder: Path, count: int = 3, total: int | None = 3, **changed: int) -> Path:
        """Parts with a tensor each; `changed` replaces keys of the second."""
        for number in range(count):
            stated = {"split.no": number, "split.count": count} | (changed if number == 1 else {})
            pairs = [pair(key, 2, struct.pack("<H", value)) for key, value in stated.items()]
            if total is not None:
                pairs.append(pair("split.tensors.count", 5, struct.pack("<i", total)))
            if number == 0:
                pairs.append(pair("general.architecture", 8, text("llama")))
            path = folder / f"m-{number + 1:05d}-of-{count:05d}.gguf"
            path.write_bytes(file(tensor(f"x{number}"), pairs=tuple(pairs)))
        return folder

    @pytest.mark.parametrize("number", [1, 2, 3])
    def test_a_model_is_read_from_any(self, tmp_path: Path, number: int) -> None:
        self.write(tmp_path)
        found: Header = read_header(tmp_path / f"m-0000{number}-of-00003.gguf")
        assert found.metadata["general.architecture"] == "llama"
        assert [(one.name, one.file.name) for one in found.checkpoint.tensors] == [
            (f"x{place}", f"m-0000{place + 1}-of-00003.gguf") for place in range(3)
        ]
        first = read_header(tmp_path / "m-00001-of-00003.gguf")
        assert found.checkpoint.fingerprint == first.checkpoint.fingerprint

    def test_a_folder_of_parts_is_one_model(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        assert find_gguf(tmp_path) == tmp_path / "m-00001-of-00003.gguf"
        (tmp_path / "other.gguf").touch()
        with pytest.raises(ModelError, match="holds 2 GGUF models; name one of them, such as "):
            find_gguf(tmp_path)

    def test_a_part_is_missing(self, tmp_path: Path) -> None:
        (self.write(tmp_path) / "m-00003-of-00003.gguf").unlink()
        assert refusal(tmp_path / "m-00001-of-00003.gguf") == (
            f"{tmp_path / 'm-00003-of-00003.gguf'} is missing, which is part 3 of 3 of the model"
        )

    @pytest.mark.parametrize(
        ("field", "value", "said"), [("split.no", 2, "3 of 3"), ("split.count", 5, "2 of 5")]
    )
    def test_a_part_is_another_part(
        self, tmp_path: Path, field: str, value: int, said: str
    ) -> None:
        self.write(tmp_path, **{field: value})
        assert refusal(tmp_path / "m-00001-of-00003.gguf") == (
            f"{tmp_path / 'm-00002-of-00003.gguf'} says that it is part {said}; by its name it "
            "must be part 2 of 3"
        )

    def test_a_count_of_tensors_that_is_wrong(self, tmp_path: Path) -> None:
        self.write(tmp_path, total=4)
        assert refusal(tmp_path / "m-00002-of-00003.gguf") == (
            f"{tmp_path / 'm-00001-of-00003.gguf'} and the other 2 parts hold 3 tensors; "
            "split.tensors.count is 4"
        )

    def test_a_tensor_in_two_parts(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        second = tmp_path / "m-00002-of-00003.gguf"
        second.write_bytes(second.read_bytes().replace(b"x1", b"x0"))
        assert refusal(second) == f"{second} is corrupt: x0 stands in m-00001-of-00003.gguf as well"

    def test_a_part_that_is_called_otherwise(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        path = (tmp_path / "m-00001-of-00003.gguf").rename(tmp_path / "model.gguf")
        assert refusal(path) == (
            f"{path} says that it is one of 3 parts; the parts must be named as llama-gguf-split "
            "names them, such as NAME-00001-of-00003.gguf"
        )
