"""Leases: locks that processes hold while they live, so that others recognize orphaned work.

Locks of the operating system rather than process ids: they end with their process, however that
ends, and are visible across containers, whose process ids mean nothing to each other.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterable
from pathlib import Path

from app.store.database import StoreError
from app.system.private import create_folder

if sys.platform == "win32":
    import msvcrt

    def _lock(file: int) -> None:
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


class Lease:
    """A lock file in `folder` for this process, held until `release` or the end of the process.

    Raises:
        OSError: the folder cannot be written, or its file system has no locks.
    """

    def __init__(self, folder: Path) -> None:
        create_folder(folder)
        self.name = uuid.uuid4().hex
        self._path = _path(folder, self.name)
        self._file = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        _lock(self._file)

    def release(self) -> None:
        os.close(self._file)
        self._path.unlink(missing_ok=True)


def is_held(folder: Path, name: str) -> bool:
    """Whether the process that holds lease `name` is alive; a dead one's file is removed."""
    path = _path(folder, name)
    try:
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        _lock(file)
    except OSError:
        return True
    finally:
        os.close(file)
    path.unlink(missing_ok=True)
    return False


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}.lease"


class Leases:
    """Work that is marked with a lease belongs to its holder, and to any program once the holder is
    dead.

    Args:
        folder: the folder of the lease files.

    Attributes:
        own: the name of this program's lease.

    Raises:
        OSError: the folder cannot be written, or its file system has no locks.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lease = Lease(folder)
        self.own = self._lease.name

    def release(self) -> None:
        """Release this program's lease."""
        self._lease.release()

    def dead(self, names: Iterable[str]) -> set[str]:
        """Those of these leases whose holders are dead.

        Raises:
            StoreError: one of them cannot be checked.
        """
        try:
            return {one for one in {*names} - {self.own} if not is_held(self._folder, one)}
        except OSError as error:
            why = error.strerror or error
            raise StoreError(f"{self._folder}: a lease cannot be checked ({why})") from None
