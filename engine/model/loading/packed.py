"""Packed weights, kept in the cache folder so that later loadings need not pack the model's weights
again.

They are kept for one model, processor and build, as a verdict (`engine.model.checks.verdicts`).
Each piece has a checksum, and the program that uses them must reproduce the logits of the first
loading.

A loading maps the file, which costs no memory that the system's cache of files has not allocated.
Once the model serves, huge pages replace the file: kernels read those up to 1.5 times as fast, and
a change of the file, or a lack of memory for the cache, no longer concerns them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import psutil
from torch import Tensor

from engine.model.files import kept
from engine.model.files.meter import Meter
from engine.model.program.arena import aligned, allocate

logger = logging.getLogger(__name__)

# Of all files together; the oldest are removed first. A file is at most this part of the free disk
# space.
_MOST_BYTES = 16 << 30
_MOST_OF_FREE = 0.25

_SUFFIX = ".weights"  # of a finished file; that of one being written is the process

# Pieces begin at a page of the file.
_PAGE = 4096
# Two threads read as fast as the memory of two cores allows, each a part of this size.
_PART = 4 << 20
_THREADS = 2
# Bytes that become memory at once: they take twice their space meanwhile.
_MOVED = 8 << 20


@dataclass(frozen=True, slots=True)
class PackedFile:
    """A file of packed weights: a line of JSON that is padded to whole pages, then the pieces.

    Attributes:
        build: the build and processor that packed them.
        sizes: bytes of each piece; None stands for a piece that could not be packed.
        sums: a checksum of each piece.
        begin: the position of the first piece.
    """

    path: Path
    build: str
    sizes: Sequence[int | None]
    sums: Sequence[int]
    begin: int

    @classmethod
    def open(cls, path: Path) -> PackedFile:
        """Read the heading.

        Raises:
            OSError, ValueError, TypeError, KeyError: it cannot be read, or is broken.
        """
        with path.open("rb") as stream:
            heading = stream.readline()
        stated: Any = json.loads(heading)
        sizes = [None if one is None else int(one) for one in stated["sizes"]]
        sums = [int(one) for one in stated["sums"]]
        return cls(path, str(stated["build"]), sizes, sums, len(heading))

    @property
    def num_bytes(self) -> int:
        """Bytes of all pieces."""
        return sum(aligned(size) for size in self.sizes if size is not None)

    def map(self, native: ModuleType, meter: Meter) -> MappedWeights | None:
        """Map the pieces; None if they are not those that were kept, which is logged."""
        try:
            memory = self._memory(native)
            sums = self._read(memory, meter)
        except OSError as error:
            _refuse(self.path, error)
            return None
        if sums != list(self.sums):
            _refuse(self.path, "it was changed")
            return None
        pieces = [None if one is None else memory[one] for one in self._places()]
        return MappedWeights(native, memory, pieces)

    def _memory(self, native: ModuleType) -> Tensor:
        with self.path.open("rb", buffering=0) as stream:
            if os.fstat(stream.fileno()).st_size != self.begin + self.num_bytes:
                raise OSError("it is truncated")
            memory = allocate(native, self.num_bytes)
            native.map_file(memory, stream.fileno(), self.begin)
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
        return memory

    def _read(self, memory: Tensor, meter: Meter) -> list[int]:
        """The checksum of each piece."""
        numbers, sums = memory.numpy(), [0] * len(self.sizes)
        parts: list[tuple[int, int, int]] = []  # piece, first byte, end
        for at, place in enumerate(self._places()):
            if place is not None:
                end = place.start + aligned(place.stop - place.start)
                starts = range(place.start, end, _PART)
                parts += ((at, one, min(one + _PART, end)) for one in starts)

        def read(part: tuple[int, int, int]) -> int:
            _, first, end = part
            found = _sum(numbers[first:end])
            meter.add(end - first)
            return found

        with ThreadPoolExecutor(_THREADS) as threads:
            for part, found in zip(parts, threads.map(read, parts), strict=True):
                sums[part[0]] += found
        return [one % (1 << 64) for one in sums]

    def _places(self) -> Iterator[slice | None]:
        """Where each piece is in memory."""
        begin = 0
        for size in self.sizes:
            yield None if size is None else slice(begin, begin + size)
            begin += aligned(size or 0)


@dataclass(frozen=True, slots=True)
class MappedWeights:
    """Packed weights whose memory is a file.

    Attributes:
        memory: uint8, all pieces.
        pieces: see `engine.model.program.arena.Arena.pieces`.
    """

    native: ModuleType
    memory: Tensor
    pieces: list[Tensor | None]

    def unmap(self, is_wanted: Callable[[], bool]) -> None:
        """Replace the file by memory, while others read the pieces; blocks. If there is too little
        memory, the rest stays mapped.

        Args:
            is_wanted: called now and then; if it returns False, this ends.
        """
        for begin in range(0, len(self.memory), _MOVED):
            if not is_wanted():
                return
            try:
                self.native.unmap_file(self.memory[begin : begin + _MOVED])
            except OSError as error:
                logger.warning("packed weights stay mapped from their file: %s", error)
                return


def find(path: Path) -> PackedFile | None:
    """Open a file of packed weights; None if there is none, or it is broken."""
    if not kept.KEPT:
        return None
    try:
        found = PackedFile.open(path)
        os.utime(path)  # the files that were not used for the longest time are removed first
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        _refuse(path, error)
        return None
    return found


def store(path: Path, pieces: Sequence[Tensor | None], is_wanted: Callable[[], bool]) -> None:
    """Store the pieces of a model's arena, if there is space; blocks. Files of other builds are
    removed.

    Args:
        path: in the model's folder of packed weights (`ModelEntry.packed_folder`).
        is_wanted: called before each piece; if it returns False, nothing is stored.
    """
    folder, build = path.parent.parent, kept.build()
    whole = [None if one is None else _whole(one) for one in pieces]
    sizes = [None if one is None else len(one) for one in pieces]
    sums = [0 if one is None else _sum(one) for one in whole]
    heading = json.dumps({"build": build, "sizes": sizes, "sums": sums}).encode()
    heading += b" " * (-(len(heading) + 1) % _PAGE) + b"\n"
    total = len(heading) + sum(len(one) for one in whole if one is not None)
    try:
        with kept.storing(path, folder, _MOST_BYTES) as partial:
            _remove_others(folder, build)
            if total > min(_MOST_BYTES, shutil.disk_usage(folder).free * _MOST_OF_FREE):
                return
            with partial.open("wb") as stream:
                stream.write(heading)
                for one in whole:
                    if not is_wanted():
                        partial.unlink()
                        return
                    if one is not None:
                        stream.write(one.data)
    except OSError as error:
        logger.warning("packed weights cannot be kept: %s", error)


def _refuse(path: Path, reason: object) -> None:
    logger.warning("%s cannot be used, and the weights are packed again: %s", path, reason)


def _remove_others(folder: Path, build: str) -> None:
    """Remove the files of other builds, the broken, and those that a program left unfinished."""
    for path in folder.glob("*/*"):
        with contextlib.suppress(ValueError, TypeError, KeyError):
            found, writer = PackedFile.open(path), path.suffix.removeprefix(".")
            is_written = writer.isdecimal() and psutil.pid_exists(int(writer))
            if found.build == build and (path.suffix == _SUFFIX or is_written):
                continue
        path.unlink(missing_ok=True)


def _whole(piece: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A piece with the zeros behind it, up to the next piece."""
    begin = piece.storage_offset()
    return piece.as_strided((aligned(len(piece)),), (1,), begin).numpy()


def _sum(numbers: np.ndarray[Any, np.dtype[np.uint8]]) -> int:
    """The sum modulo 2^64 of the 64-bit numbers in memory: two threads sum 20 GB/s."""
    return int(np.add.reduce(numbers.view(np.uint64)))
