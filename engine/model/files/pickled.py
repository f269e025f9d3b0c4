"""Pickled: finds the tensors of a `pytorch_model.bin` without executing the file.

Such a file is a zip archive of torch: the raw bytes of each storage, and a pickle that describes
the tensors made from them. A pickle is a program. Here it is never run: the standard library lists
its instructions, and those that build dictionaries, tuples and torch's tensors are interpreted on
plain data. Any other call is an error. So only names, shapes and offsets come from the file, and
its weights are read at these like those of safetensors. `torch.load(weights_only=True)` was meant
to be as safe, and let code run (CVE-2025-32434, before torch 2.6) or memory be overwritten
(CVE-2026-24747, before 2.10).
"""

from __future__ import annotations

import io
import math
import pickletools
import reprlib
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.api.errors import ModelError, cause_of
from engine.model.files.reading import check_file

# A mixture of 61 layers of 256 experts, three matrices each, has 46,848 tensors, each with about
# 200 bytes in the pickle and 100 in the archive's directory.
_MOST_BYTES = 32 << 20
_LOCAL_HEADER = struct.Struct("<26xHH")  # the lengths of its name and its extra field

# safetensors' names of the types, by torch's names of their storages, and the bytes of an element.
_STORAGES = {
    "FloatStorage": ("F32", 4),
    "HalfStorage": ("F16", 2),
    "BFloat16Storage": ("BF16", 2),
    "DoubleStorage": ("F64", 8),
    "LongStorage": ("I64", 8),
    "IntStorage": ("I32", 4),
    "ShortStorage": ("I16", 2),
    "CharStorage": ("I8", 1),
    "ByteStorage": ("U8", 1),
    "BoolStorage": ("BOOL", 1),
}


@dataclass(frozen=True, slots=True)
class PickledTensor:
    """Location of a tensor in its file.

    Attributes:
        dtype: its type, as safetensors names it.
        offset: offset of its first byte in the file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


def read_pickled(file: Path) -> tuple[bytes, list[PickledTensor]]:
    """The pickle of a file, and its tensors.

    Raises:
        FileNotFoundError: there is no such file.
        ModelError: it is not an archive of torch, or its pickle does more than describe tensors in
            it.
    """
    size = check_file(file)
    try:
        with _Bounded(file) as stream, zipfile.ZipFile(stream) as archive:
            entries = {info.filename: info for info in archive.infolist()}
            prefix = next((one for one in entries if one.endswith("/data.pkl")), "data.pkl")
            prefix = prefix.removesuffix("data.pkl")
            pickle = _content(archive, entries, f"{prefix}data.pkl", file)
            if f"{prefix}byteorder" in entries:
                order = _content(archive, entries, f"{prefix}byteorder", file)
                if order != b"little":
                    raise ModelError(f"{file} has numbers in the byte order {order!r}")

            def place(key: str) -> tuple[int, int]:
                """Offset and size of a storage."""
                info = entries.get(f"{prefix}data/{key}")
                if info is None or info.compress_type != zipfile.ZIP_STORED:
                    raise ModelError(f"{file} is corrupt: it has no storage {key!r}, as it is")
                stream.seek(info.header_offset)
                name, extra = _LOCAL_HEADER.unpack(stream.read(_LOCAL_HEADER.size))
                start = info.header_offset + _LOCAL_HEADER.size + name + extra
                return start, min(info.file_size, size - start)

            tensors = _tensors(_Reader(file).run(pickle), place, file)
    except (ModelError, FileNotFoundError):
        raise
    except Exception as error:  # zipfile may raise anything
        raise ModelError(
            f"{file} is not an archive of torch, or is cut off ({cause_of(error)}); files from "
            "before torch 1.6 have to be saved again, as safetensors"
        ) from None
    # A tied weight is listed under two names.
    if sum(tensor.num_bytes for tensor in tensors) > 2 * size:
        raise ModelError(f"{file} is corrupt: its tensors have more than twice its bytes")
    return pickle, tensors


class _Bounded(io.FileIO):
    """A file that limits each read to the size of a directory or a pickle."""

    def read(self, size: int | None = -1) -> bytes:
        wanted = _MOST_BYTES + 1 if size is None or size < 0 else size
        data = super().read(wanted) if wanted <= _MOST_BYTES + 1 else b""
        if wanted > _MOST_BYTES + 1 or len(data) > _MOST_BYTES:
            raise zipfile.BadZipFile(f"a part of it has more than {_MOST_BYTES} bytes")
        return data or b""


def _content(
    archive: zipfile.ZipFile, entries: dict[str, zipfile.ZipInfo], name: str, file: Path
) -> bytes:
    info = entries.get(name)
    if info is None or info.compress_type != zipfile.ZIP_STORED or info.file_size > _MOST_BYTES:
        raise ModelError(
            f"{file} is not an archive of torch: it has no {name} of a usual size, as it is"
        )
    return archive.read(info)


@dataclass(frozen=True, slots=True)
class _Name:
    """A function or class that the pickle names. It is never looked up."""

    of: str


@dataclass(frozen=True, slots=True)
class _Storage:
    kind: str
    key: str


@dataclass(frozen=True, slots=True)
class _View:
    """A tensor as the pickle describes it, unchecked."""

    storage: Any
    offset: Any
    shape: Any
    stride: Any


_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}
_VALUES = ("BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT")
_PAST = ("PROTO", "STOP", "FRAME")
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Reader:
    """Interprets the instructions of a pickle on plain data.

    Args:
        file: the file, for messages.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self, pickle: bytes) -> Any:
        """The object that the pickle describes.

        Raises:
            ModelError: it does something that tensors do not need, or is broken.
        """
        try:
            for code, argument, _ in pickletools.genops(pickle):
                self._do(code.name, argument)
            return self._stack.pop()
        except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(
                f"{self._file} is corrupt: its pickle is broken ({reprlib.repr(str(error))})"
            ) from None

    def _do(self, code: str, argument: Any) -> None:
        stack = self._stack
        if code in _CONSTANTS:
            stack.append(_CONSTANTS[code]())
        elif code in _VALUES:
            stack.append(argument)
        elif code in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = stack[-1]
        elif code in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif code == "MARK":
            self._marks.append(len(stack))
        elif code in _TUPLES:
            count = _TUPLES[code]
            stack[-count:] = [tuple(stack[-count:])]
        elif code == "TUPLE":
            stack.append(tuple(self._since_mark()))
        elif code in ("SETITEM", "SETITEMS"):
            found = self._since_mark() if code == "SETITEMS" else [stack.pop(-2), stack.pop()]
            if not all(type(name) is str for name in found[::2]):
                # Hashing a deep tuple may overflow the stack.
                raise ValueError("a name is not text")
            stack[-1].update(zip(found[::2], found[1::2], strict=True))
        elif code in ("APPEND", "APPENDS"):
            found = self._since_mark() if code == "APPENDS" else [stack.pop()]
            stack[-1].extend(found)
        elif code == "BUILD":
            stack.pop()  # a dictionary's state beside its items
        elif code == "GLOBAL":
            stack.append(_Name(argument))
        elif code == "BINPERSID":
            stack.append(self._storage(stack.pop()))
        elif code == "REDUCE":
            arguments = stack.pop()
            stack.append(self._called(stack.pop(), arguments))
        elif code not in _PAST:
            raise ModelError(
                f"{self._file} holds more than tensors: its pickle has the instruction {code}"
            )

    def _since_mark(self) -> list[Any]:
        at = self._marks.pop()
        found = self._stack[at:]
        del self._stack[at:]
        return found

    def _storage(self, said: Any) -> _Storage:
        what, kind, key, _, _ = said
        if what != "storage" or not isinstance(kind, _Name) or not isinstance(key, str):
            raise ValueError("a storage is described in another way")
        return _Storage(kind.of.removeprefix("torch "), key)

    def _called(self, function: Any, arguments: Any) -> Any:
        name = function.of if isinstance(function, _Name) else type(function).__name__
        if name == "collections OrderedDict" and not arguments:
            return {}
        if name == "torch._utils _rebuild_tensor_v2":
            return _View(*arguments[:4])
        if name == "torch._utils _rebuild_parameter":
            return arguments[0]
        raise ModelError(
            f"{self._file} holds more than tensors: its pickle calls {name[:100]!r}, and "
            "nothing is called for a file"
        )


def _tensors(
    found: Any, place: Callable[[str], tuple[int, int]], file: Path
) -> list[PickledTensor]:
    if not isinstance(found, dict):
        raise ModelError(f"{file} holds no tensors by their names")
    views = {name: view for name, view in found.items() if isinstance(view, _View)}
    return [_checked(name, view, place, file) for name, view in views.items()]


def _checked(
    name: Any, view: _View, place: Callable[[str], tuple[int, int]], file: Path
) -> PickledTensor:
    storage, offset, shape, stride = view.storage, view.offset, view.shape, view.stride
    what = f"{file} is corrupt: {reprlib.repr(name)}"
    numbers = (
        (*shape, *stride, offset) if all(isinstance(s, tuple) for s in (shape, stride)) else ()
    )
    if (
        not isinstance(name, str)
        or not isinstance(storage, _Storage)
        or not numbers
        or not all(type(one) is int and 0 <= one < 1 << 63 for one in numbers)
        or len(shape) != len(stride)
        or len(shape) > 64
    ):
        raise ModelError(f"{what} is described in another way than torch describes tensors")
    if storage.kind not in _STORAGES:
        raise ModelError(f"{file} stores {name} as {storage.kind}; read are {', '.join(_STORAGES)}")
    dtype, item = _STORAGES[storage.kind]
    expected = 1
    for side, step in zip(reversed(shape), reversed(stride), strict=True):
        if side > 1 and step != expected and math.prod(shape):
            raise ModelError(
                f"{file} stores {name} with gaps or turned: its strides are {stride}, its shape is "
                f"{shape}; save it again, as safetensors"
            )
        expected *= side
    start, size = place(storage.key)
    if (offset + expected) * item > size:
        raise ModelError(f"{what} has the shape {shape}, which is more than its storage holds")
    return PickledTensor(name, dtype, shape, start + offset * item, expected * item)
