"""Leases: the leases of all programs that have the store open, including this one's."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from app.store.database import StoreError
from app.store.lease import Lease, is_held


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
            raise StoreError(f"{self._folder}: a lease cannot be looked at ({why})") from None
