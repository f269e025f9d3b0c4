"""Kept files: files in the cache folder that make later loadings faster. A file that cannot be
written or read costs that time, and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger(__name__)

# Whether files are stored and used. Tests make all checks every time.
KEPT = True

_DIGEST_BYTES = hashlib.sha256().digest_size


def recall(path: Path, make: Callable[[], bytes], *, most: int) -> bytes:
    """The content of a kept file, which ends with its digest. It is made once.

    Args:
        path: names all that the content depends on.
        make: makes the content.
        most: most bytes of all files in the folder; the oldest are removed.
    """
    if not KEPT:
        return make()
    try:
        stored = path.read_bytes()
        content, stated = stored[:-_DIGEST_BYTES], stored[-_DIGEST_BYTES:]
        if hashlib.sha256(content).digest() == stated:
            return content
    except OSError:
        pass  # It is made, and stored in its place.
    content = make()
    try:
        with storing(path, path.parent, most) as partial:
            partial.write_bytes(content + hashlib.sha256(content).digest())
    except OSError as error:
        logger.warning("%s cannot be kept: %s", path, error)
    return content


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
