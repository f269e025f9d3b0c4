"""Kept files: files in the cache folder that make later loadings faster. A file that cannot be
written or read costs that time, and nothing else.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

from platformdirs import user_cache_path

import engine
from engine.native import kernels

logger = logging.getLogger(__name__)

# A finding has 1 to 30 KB.
_MOST_FINDINGS = 16 << 20

JsonT = TypeVar("JsonT")

# Whether files are stored and used. Tests make all checks every time.
KEPT = True

_DIGEST_BYTES = hashlib.sha256().digest_size


def cache_folder() -> Path:
    """The program's folder for files that can be fetched or made again."""
    return user_cache_path("batchdeck", appauthor=False)


def content_of(path: Path, make: Callable[[], bytes], *, most: int) -> bytes:
    """The content of a kept file, which ends with its digest. It is made once.

    Args:
        path: names all that the content depends on.
        make: makes the content.
        most: most bytes of all files in the folder; the oldest are removed.
    """
    if not KEPT:
        return make()
    content = read(path)
    if content is None:
        content = make()
        store(path, content, most=most)
    return content


def read(path: Path) -> bytes | None:
    """The content of a kept file; None if there is none, or it is damaged."""
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    content, stated = stored[:-_DIGEST_BYTES], stored[-_DIGEST_BYTES:]
    return content if hashlib.sha256(content).digest() == stated else None


def store(path: Path, content: bytes, *, most: int) -> None:
    """Store the content of a kept file; see `content_of`."""
    try:
        with storing(path, path.parent, most) as partial:
            partial.write_bytes(content + hashlib.sha256(content).digest())
    except OSError as error:
        logger.warning("%s cannot be kept: %s", path, error)


def recall(facts: tuple[object, ...], make: Callable[[], JsonT]) -> JsonT:
    """A finding that depends on some facts and on the build alone, as JSON data. It is made once.

    Args:
        make: finds it.
    """
    digest = hashlib.sha256(repr((build(), facts)).encode()).hexdigest()
    path = cache_folder() / "findings" / f"{digest}.json"
    content = content_of(path, lambda: json.dumps(make()).encode(), most=_MOST_FINDINGS)
    found: JsonT = json.loads(content)
    return found


@contextmanager
def storing(file: Path, folder: Path, most: int) -> Iterator[Path]:
    """The path of a file to write, which becomes `file` at the end of the context. If it was not
    written, or the context raises, nothing remains.

    Args:
        folder: the oldest files below it are removed until all have at most `most` bytes.

    Raises:
        OSError: the folder cannot be written.
    """
    partial = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        if partial.exists():
            partial.replace(file)
            _remove_oldest(file, folder, most)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _remove_oldest(file: Path, folder: Path, most: int) -> None:
    """Remove the oldest files of a folder, except one, until all have at most `most` bytes."""
    every = (one for one in folder.rglob("*") if one.is_file() and one != file)
    stats = {one: one.stat() for one in every}
    left = most - file.stat().st_size
    for one in sorted(stats, key=lambda one: stats[one].st_mtime, reverse=True):
        left -= stats[one].st_size
        if left < 0:
            one.unlink(missing_ok=True)


@functools.cache
def build() -> str:
    """A digest of processor, kernels, libraries and code, on which the checks of any model
    depend.
    """
    native = kernels()
    facts: list[object] = [*map(version, ("torch", "transformers")), _processor()]
    if native is not None:
        facts += [native.level(), stamp(Path(str(native.__file__)))]
    folders = sorted(engine.__path__)  # two if an editable installation has the kernels elsewhere
    facts += [stamp(file) for one in folders for file in sorted(Path(one).rglob("*.py"))]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def stamp(file: Path) -> tuple[str, int, int]:
    """The name of a file, its size, and the time of its last change in ns."""
    found = file.stat()
    return file.name, found.st_size, found.st_mtime_ns


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    named = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")
    return repr(sorted({one for one in lines if one.partition("\t")[0].strip() in named}))
