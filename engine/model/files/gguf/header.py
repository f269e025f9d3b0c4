"""Header: the metadata and the tensors of a GGUF file, read once and strictly.

A file is magic, version and counts, pairs of key and value, a line for each tensor, and after
padding the tensors themselves, each at a multiple of the alignment. All numbers are little-endian.
Nothing is allocated by a count before the file is known to be long enough for it. Source: the
specification of GGUF 3, docs/gguf.md in ggml.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from engine.api.errors import ModelError
from engine.model.files.checkpoint import GGUF_PART, Checkpoint, StoredTensor
from engine.model.files.reading import check_file
from engine.native import kernels
from engine.text.table import Texts

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32  # unless the metadata states another
_MOST_AXES = 4  # as in ggml
_MOST_NAME = 1 << 16  # bytes of a key or of a tensor's name

_STRING, _ARRAY = 8, 9
# The other types of values, by their numbers in the file.
_NUMBERS = {
    **{0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4"},
    **{6: "<f4", 7: "|b1", 10: "<u8", 11: "<i8", 12: "<f8"},
}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
# The fewest bytes of a pair, and of a tensor's line.
_LEAST_PAIR, _LEAST_TENSOR = 8 + 4 + 1, 8 + 4 + 4 + 8


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a model's files.

    Attributes:
        metadata: by llama.cpp's keys. Lists of strings are `Texts`, and other lists are arrays.
        checkpoint: the tensors of all parts, by llama.cpp's names and GGUF's types.
    """

    metadata: Mapping[str, Any]
    checkpoint: Checkpoint


def read_header(path: Path) -> Header:
    """Read the header of a file, and of its other parts if there are several.

    Raises:
        ModelError: a file is missing, truncated or corrupt, or of another version; or a part is
            missing, or belongs to another model.
    """
    first = _read(path)
    count = _stated(first, "split.count", 1)
    if count == 1:
        return Header(first.metadata, _join([first]))
    files = [_read(part) for part in _part_paths(first, count)]
    for number, file in enumerate(files):
        if (_stated(file, "split.count", 1), _stated(file, "split.no", 0)) != (count, number):
            raise ModelError(
                f"{file.path} says that it is part {_stated(file, 'split.no', 0) + 1} of "
                f"{_stated(file, 'split.count', 1)}; by its name it must be part {number + 1} of "
                f"{count}"
            )
    num_tensors = sum(len(file.tensors) for file in files)
    expected = _stated(first, "split.tensors.count", num_tensors)
    if num_tensors != expected:
        raise ModelError(
            f"{files[0].path} and the other {count - 1} parts hold {num_tensors} tensors; "
            f"split.tensors.count is {expected}"
        )
    return Header(files[0].metadata, _join(files))


@dataclass(frozen=True, slots=True)
class _File:
    """One file.

    Attributes:
        digest: hash of its name, its size and everything before the tensors.
    """

    path: Path
    metadata: dict[str, Any]
    tensors: tuple[StoredTensor, ...]
    digest: bytes


def _stated(file: _File, key: str, default: int) -> int:
    value = file.metadata.get(key, default)
    if type(value) is not int:
        raise ModelError(f"{file.path} is corrupt: {key} is {value!r}; it must be a whole number")
    return value


def _part_paths(file: _File, count: int) -> list[Path]:
    """The paths of the parts, by the name of one of them."""
    found = GGUF_PART.fullmatch(file.path.name)
    if found is None or int(found["count"]) != count:
        raise ModelError(
            f"{file.path} says that it is one of {count} parts; the parts must be named as "
            f"llama-gguf-split names them, such as NAME-00001-of-{count:05d}.gguf"
        )
    stem = found["stem"]
    paths = [
        file.path.with_name(f"{stem}-{number:05d}-of-{count:05d}.gguf")
        for number in range(1, count + 1)
    ]
    for number, path in enumerate(paths, start=1):
        if not path.is_file():
            raise ModelError(f"{path} is missing, which is part {number} of {count} of the model")
    return paths


def _join(files: Sequence[_File]) -> Checkpoint:
    tensors: dict[str, StoredTensor] = {}
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.digest)
        for tensor in file.tensors:
            if tensor.name in tensors:
                raise ModelError(
                    f"{file.path} is corrupt: {tensor.name} stands in "
                    f"{tensors[tensor.name].file.name} as well"
                )
            tensors[tensor.name] = tensor
    return Checkpoint(files[0].path.parent, tuple(tensors.values()), digest.hexdigest())


def _read(path: Path) -> _File:
    try:
        size = check_file(path)
        if size == 0:
            raise ModelError(f"{path} is empty")
        with (
            path.open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return _Reader(path, data).read()
    except FileNotFoundError:
        raise ModelError(f"{path} is missing") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None


def _join_strings(data: mmap.mmap, at: int, count: int) -> tuple[bytes, bytes, int] | None:
    """As the kernel `join_strings`, which takes 3 ms for 262,144 strings where this takes 50."""
    found, lengths = [], []
    try:
        for _ in range(count):
            start = at + 8
            at = start + _U64.unpack_from(data, at)[0]
            found.append(data[start:at])
            lengths.append(at - start)
    except (struct.error, OverflowError, MemoryError):
        return None
    if at > len(data):
        return None
    return b"\0".join(found), np.array(lengths, "<u8").tobytes(), at


class _Reader:
    """Reads one file from its beginning to the last tensor's line."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._size = len(data)
        self._at = 0

    def read(self) -> _File:
        num_tensors, num_pairs = self._read_start()
        metadata: dict[str, Any] = {}
        for _ in range(num_pairs):
            key = self._text("a key", _MOST_NAME)
            if key in metadata:
                raise self._corrupt(f"the key {key} stands there twice")
            metadata[key] = self._value(key)
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise self._corrupt(
                f"general.alignment is {alignment!r}; it must be a power of two, such as "
                f"{_ALIGNMENT}"
            )
        found = [self._tensor() for _ in range(num_tensors)]
        end = self._at
        start = -(-end // alignment) * alignment
        tensors = self._placed(found, start, alignment)
        digest = hashlib.sha256(f"{self._path.name}\n{self._size}\n".encode())
        digest.update(self._data[:end])
        return _File(self._path, metadata, tensors, digest.digest())

    def _read_start(self) -> tuple[int, int]:
        """Check magic and version; returns the numbers of tensors and pairs."""
        if self._data[:4] != _MAGIC:
            raise ModelError(
                f"{self._path} is no GGUF file: it begins with {self._data[:4]!r}, not {_MAGIC!r}"
            )
        self._at = 4
        version = self._number(_U32, "its version")
        if version not in _VERSIONS:
            if int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
                raise ModelError(
                    f"{self._path} is a big-endian GGUF file; only little-endian files are read"
                )
            raise ModelError(
                f"{self._path} is of GGUF version {version}; versions {_VERSIONS[0]} and "
                f"{_VERSIONS[1]} are read"
            )
        num_tensors = self._number(_U64, "the number of tensors")
        num_pairs = self._number(_U64, "the number of keys")
        self._expect(
            _LEAST_TENSOR * num_tensors + _LEAST_PAIR * num_pairs,
            f"{num_tensors} tensors and {num_pairs} keys",
        )
        return num_tensors, num_pairs

    def _value(self, key: str) -> Any:
        kind = self._number(_U32, f"the type of {key}")
        if kind == _STRING:
            return self._text(key, self._size, strict=False)
        if kind in _NUMBERS:
            return self._array(key, kind, 1)[0].item()
        if kind != _ARRAY:
            raise self._corrupt(f"{key} is of type {kind}, which GGUF does not have")
        kind = self._number(_U32, f"the type of {key}")
        count = self._number(_U64, f"the length of {key}")
        if kind == _STRING:
            return self._texts(key, count)
        if kind in _NUMBERS:
            return self._array(key, kind, count)
        raise self._corrupt(f"{key} is a list of type {kind}, which is not read")

    def _array(self, key: str, kind: int, count: int) -> np.ndarray[Any, Any]:
        dtype = np.dtype(_NUMBERS[kind])
        self._expect(count * dtype.itemsize, key)
        # A copy, because the map is closed after reading. Booleans may be any bytes in a file.
        values = np.frombuffer(self._data, "u1" if kind == 7 else dtype, count, self._at)
        self._at += count * dtype.itemsize
        return values != 0 if kind == 7 else values.copy()

    def _texts(self, key: str, count: int) -> Texts:
        self._expect(8 * count, key)
        native = kernels()
        join = _join_strings if native is None else native.join_strings
        found = join(self._data, self._at, count)
        if found is None:
            raise self._cut(key)
        joined, lengths, self._at = found
        texts = Texts.joined_by_zeros(joined, np.frombuffer(lengths, "<u8").tolist())
        try:
            texts.joined.decode()
        except UnicodeDecodeError:
            raise self._corrupt(f"{key} holds text that is not UTF-8") from None
        return texts

    def _tensor(self) -> tuple[str, GGMLQuantizationType, tuple[int, ...], int]:
        """Name, type, shape with the longest stride first, and offset of a tensor."""
        name = self._text("the name of a tensor", _MOST_NAME)
        num_axes = self._number(_U32, name)
        if num_axes > _MOST_AXES:
            raise self._corrupt(f"{name} has {num_axes} sides; {_MOST_AXES} are allowed")
        sides = [self._number(_U64, name) for _ in range(num_axes)]
        number = self._number(_U32, name)
        offset = self._number(_U64, name)
        try:
            kind = GGMLQuantizationType(number)
        except ValueError:
            raise ModelError(
                f"{self._path} stores {name} as type {number}, which is unknown; known are "
                f"{', '.join(f'{one.name} ({one.value})' for one in GGMLQuantizationType)}"
            ) from None
        return name, kind, tuple(reversed(sides)), offset

    def _placed(
        self,
        found: list[tuple[str, GGMLQuantizationType, tuple[int, ...], int]],
        start: int,
        alignment: int,
    ) -> tuple[StoredTensor, ...]:
        """The tensors at their places in the file, in its order."""
        tensors = []
        names: set[str] = set()
        for name, kind, shape, offset in found:
            if name in names:
                raise self._corrupt(f"the tensor {name} stands there twice")
            names.add(name)
            per_block, block_bytes = GGML_QUANT_SIZES[kind]
            if not shape or shape[-1] % per_block:
                raise self._corrupt(
                    f"{name} has the shape {list(shape)}; rows of {kind.name} must be multiples of "
                    f"{per_block}"
                )
            if offset % alignment:
                raise self._corrupt(
                    f"{name} begins at {offset} of the tensors; it must be a multiple of "
                    f"{alignment}"
                )
            num_bytes = math.prod(shape) // per_block * block_bytes
            if start + offset + num_bytes > self._size:
                raise ModelError(
                    f"{self._path} is truncated: {name} ends at byte "
                    f"{start + offset + num_bytes}, the file at {self._size}"
                )
            tensors.append(
                StoredTensor(name, self._path, kind.name, shape, start + offset, num_bytes)
            )
        end, before = start, "the header"
        for tensor in sorted(tensors, key=lambda one: (one.offset, one.num_bytes)):
            if tensor.offset < end:
                raise self._corrupt(
                    f"{tensor.name} begins at byte {tensor.offset} and overlaps {before}"
                )
            end, before = tensor.offset + tensor.num_bytes, tensor.name
        return tuple(tensors)

    def _text(self, what: str, most: int, *, strict: bool = True) -> str:
        """Read a string. Only values may be invalid UTF-8, because they are for people."""
        length = self._number(_U64, what)
        if length > most:
            raise self._cut(what)
        self._expect(length, what)
        data = self._data[self._at : self._at + length]
        self._at += length
        try:
            return data.decode(errors="strict" if strict else "replace")
        except UnicodeDecodeError:
            raise self._corrupt(f"{what} is not UTF-8: {data[:40]!r}") from None

    def _number(self, kind: struct.Struct, what: str) -> int:
        self._expect(kind.size, what)
        value: int = kind.unpack_from(self._data, self._at)[0]
        self._at += kind.size
        return value

    def _expect(self, num_bytes: int, what: str) -> None:
        if num_bytes > self._size - self._at:
            raise self._cut(what)

    def _cut(self, what: str) -> ModelError:
        return ModelError(
            f"{self._path} is truncated or corrupt: {what} would end beyond its {self._size} bytes"
        )

    def _corrupt(self, why: str) -> ModelError:
        return ModelError(f"{self._path} is corrupt: {why}")
