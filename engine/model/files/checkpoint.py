"""Checkpoint: the weight files of a model folder, checked before any weight is read."""

from __future__ import annotations

import hashlib
import math
import os
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.api.errors import ModelError
from engine.model.files.pickled import read_pickled
from engine.model.files.reading import INDEX_BYTES, check_file, parse_json, read_json

SINGLE_FILE = "model.safetensors"
INDEX_FILE = f"{SINGLE_FILE}.index.json"
PICKLED_FILE = "pytorch_model.bin"
PICKLED_SUFFIX = ".bin"
CONFIG_FILE = "config.json"
GGUF_SUFFIX = ".gguf"
# How llama-gguf-split names the parts of a model.
GGUF_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_PROJECTOR = "mmproj"  # prefix of GGUF files that only process images or sound

# Bytes of one element, by safetensors' name of its type.
_ITEM_BYTES = {
    "BOOL": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "U8": 1,
    "I8": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
}
FLOATS = ("F16", "BF16", "F32", "F64")
INTEGERS = ("BOOL", "U8", "I8", "I16", "U16", "I32", "U32", "I64", "U64")
_MAX_HEADER_BYTES = 100_000_000  # as safetensors itself allows
_MAX_AXES = 64  # as torch allows
_MAX_ELEMENTS = (1 << 63) - 1  # of one tensor, as torch counts them; no side is longer either


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Location of one tensor.

    Attributes:
        dtype: its type, as safetensors or GGUF names it.
        offset: offset of its first byte in the file.
        num_bytes: its size in the file.
    """

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All tensors of a model, as the headers of its files describe them.

    Attributes:
        fingerprint: hash of the files' names, sizes and headers.
        metadata: contents of the headers beside the tensors.
    """

    folder: Path
    tensors: tuple[StoredTensor, ...]
    fingerprint: str
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Stored size of all tensors in bytes."""
        return sum(tensor.num_bytes for tensor in self.tensors)

    @property
    def num_elements(self) -> int:
        """Total number of elements."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    @property
    def dtype(self) -> str:
        """The type of most bytes of the floating-point weights, as torch names it.

        Types without arithmetic count as bfloat16. Packed integers do not count.
        """
        names = {"F16": "float16", "F32": "float32", "F64": "float32"}
        sizes: dict[str, int] = {}
        for tensor in self.tensors:
            if tensor.dtype not in INTEGERS:
                name = names.get(tensor.dtype, "bfloat16")
                sizes[name] = sizes.get(name, 0) + tensor.num_bytes
        return max(sizes, key=sizes.__getitem__, default="float32")

    def num_bytes_as(self, dtype_bytes: int) -> int:
        """Bytes of all tensors with floating-point ones cast to `dtype_bytes` an element."""
        return sum(
            math.prod(t.shape) * dtype_bytes if t.dtype in FLOATS else t.num_bytes
            for t in self.tensors
        )


def find_gguf(path: Path) -> Path | None:
    """The GGUF file of a model; None if it has none. Of a model in several parts, the first
    available part.

    Args:
        path: a folder, or a file.

    Raises:
        ModelError: a folder has several models, or cannot be read.
    """
    if path.suffix == GGUF_SUFFIX and not os.path.isdir(path):
        return path
    try:
        has_one = any((path / name).exists() for name in (SINGLE_FILE, INDEX_FILE))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    if has_one:
        return None
    files = sorted(
        file
        for file in path.glob(f"*{GGUF_SUFFIX}")
        if not file.name.lower().startswith(_PROJECTOR)
    )
    models: dict[tuple[str, str], Path] = {}
    for file in files:
        part = GGUF_PART.fullmatch(file.name)
        models.setdefault((part["stem"], part["count"]) if part else (file.name, ""), file)
    if len(models) > 1:
        raise ModelError(
            f"{path} holds {len(models)} GGUF models; name one of them, such as {files[0]}"
        )
    return files[0] if files else None


def has_weights(folder: Path) -> bool:
    """Whether a folder has a configuration and all its weight files, or a GGUF file; or is a GGUF
    file.
    """
    try:
        if (gguf := find_gguf(folder)) is not None:
            return gguf.is_file()
        files, _ = _weight_files(folder)
        return (folder / CONFIG_FILE).is_file() and all(file.is_file() for file in files)
    except (ModelError, OSError):
        return False


def open_checkpoint(folder: Path) -> Checkpoint:
    """Read and check the headers of a folder's weights.

    Raises:
        ModelError: a file is missing, truncated, corrupt or of a type that is not supported; the
            sentence names it.
    """
    tensors: dict[str, StoredTensor] = {}
    metadata: dict[str, str] = {}
    digest = hashlib.sha256()
    files, index = _weight_files(folder)
    for file in files:
        header, stored, said = _read(file)
        metadata.update(said)
        digest.update(f"{file.name}\n{file.stat().st_size}\n".encode())
        digest.update(header)
        tensors.update((tensor.name, tensor) for tensor in stored)
    if not tensors:
        raise ModelError(f"{folder} has files of weights without any tensor")
    for name, file in index.items():
        if name not in tensors:
            raise ModelError(f"{file} lacks the tensor {name} that the index says it holds")
    return Checkpoint(folder, tuple(tensors.values()), digest.hexdigest(), metadata)


def _weight_files(folder: Path) -> tuple[tuple[Path, ...], dict[str, Path]]:
    """The files that transformers would read, and, if there are shards, the shard of each tensor by
    name. A single file takes precedence over an index, and safetensors over pickles.
    """
    for name in (SINGLE_FILE, PICKLED_FILE):
        if (folder / name).exists():
            return (folder / name,), {}
        if (folder / f"{name}.index.json").exists():
            index = _read_index(folder / f"{name}.index.json")
            return tuple(sorted(set(index.values()))), index
    others = sorted(
        p.name for kind in ("*.safetensors", "*.bin", "*.pt", "*.pth") for p in folder.glob(kind)
    )
    if others:
        raise ModelError(
            f"{folder} holds its weights as {others[0]}; loaded are {SINGLE_FILE}, {PICKLED_FILE}, "
            f"shards of these with an index ({INDEX_FILE}), or one GGUF file"
        )
    raise ModelError(f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}")


def _read_index(path: Path) -> dict[str, Path]:
    weight_map = (read_json(path, INDEX_BYTES) or {}).get("weight_map")
    try:
        shards = {str(name): str(file) for name, file in weight_map.items()}  # type: ignore[union-attr]
    except AttributeError:
        raise ModelError(f"{path} is broken: it has no weight_map from tensors to files") from None
    for file in shards.values():
        if Path(file).name != file:
            raise ModelError(f"{path} names the shard {file!r}; it must lie in the same folder")
    return {name: path.parent / file for name, file in shards.items()}


def _read(file: Path) -> tuple[bytes, list[StoredTensor], dict[str, str]]:
    """A file's header bytes, its tensors, and its metadata."""
    try:
        if file.suffix != PICKLED_SUFFIX:
            return _read_header(file)
        pickle, tensors = read_pickled(file)
    except FileNotFoundError:
        raise ModelError(f"{file} is missing; the index says it holds weights") from None
    stored = [
        StoredTensor(one.name, file, one.dtype, one.shape, one.offset, one.num_bytes)
        for one in tensors
    ]
    return pickle, stored, {}


def _read_header(file: Path) -> tuple[bytes, list[StoredTensor], dict[str, str]]:
    """A safetensors file's header, tensors and metadata. The file is a u64 length, JSON, and the
    tensors' bytes.
    """
    try:
        size = check_file(file)
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
                raise ModelError(f"{file} is truncated or no safetensors file: its header is cut")
            header = stream.read(length)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}") from None
    try:
        entries = parse_json(header)
        said = dict(entries.pop("__metadata__", None) or {})
    except (ValueError, TypeError, AttributeError, KeyError):
        raise ModelError(f"{file} is corrupt: its header is not a safetensors header") from None
    stored = [_stored_tensor(name, file, 8 + length, entry) for name, entry in entries.items()]
    _check_layout(file, 8 + length, size, stored)
    return header, stored, said


def _check_layout(file: Path, start: int, size: int, stored: list[StoredTensor]) -> None:
    """Check that the tensors fill the file from `start` on, each byte once."""
    end = max((tensor.offset + tensor.num_bytes for tensor in stored), default=start)
    if size != end:
        fault = "truncated" if size < end else "corrupt"
        raise ModelError(f"{file} is {fault}: its header describes {end} bytes, it has {size}")
    at, before = start, "its header"
    for tensor in sorted(stored, key=lambda one: (one.offset, one.num_bytes)):
        if tensor.offset != at:
            fault = "overlaps" if tensor.offset < at else "leaves a hole behind"
            raise ModelError(
                f"{file} is corrupt: {tensor.name} begins at byte {tensor.offset} and {fault} "
                f"{before}, which ends at {at}"
            )
        at, before = at + tensor.num_bytes, tensor.name


def _stored_tensor(name: str, file: Path, start: int, entry: Any) -> StoredTensor:
    """Parse a tensor's entry in the header, and check it by itself."""

    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (ValueError, KeyError, TypeError, IndexError):
        dtype = shape = begin = end = None
    if not isinstance(dtype, str) or not isinstance(shape, list):
        raise ModelError(f"{file} is corrupt: {name} has no dtype, shape and two data_offsets")
    if dtype not in _ITEM_BYTES:
        raise ModelError(f"{file} stores {name} as {dtype}; supported are {', '.join(_ITEM_BYTES)}")
    what = f"{file} is corrupt: {name} has the shape {reprlib.repr(shape)}"
    if len(shape) > _MAX_AXES:
        raise ModelError(f"{what}; it must have {_MAX_AXES} sides at most")
    if not all(type(n) is int and 0 <= n <= _MAX_ELEMENTS for n in (begin, end, *shape)):
        raise ModelError(
            f"{what} at {reprlib.repr([begin, end])}; sides and offsets must be from 0 to 2^63 - 1"
        )
    # Empty sides count as one, because torch multiplies the others anyway, to compute strides.
    if math.prod(max(n, 1) for n in shape) > _MAX_ELEMENTS:
        raise ModelError(f"{what}; its sides must make 2^63 - 1 at most")
    needed = math.prod(shape) * _ITEM_BYTES[dtype]
    if end - begin != needed:
        raise ModelError(f"{what} in {dtype}, {needed} bytes; its offsets leave {end - begin}")
    return StoredTensor(name, file, dtype, tuple(shape), start + begin, end - begin)
