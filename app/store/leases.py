"""Leases: the leases of all who have the store open, one of them this program's own."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from app.store.database import StoreError
from app.store.lease import Lease, is_held


class Leases:
    """What is marked with a lease is the work of who holds it, and anybody's once nobody does.

    Args:
        folder: where they lie.

    Attributes:
        own: the name of this program's.

    Raises:
        OSError: the folder cannot be written, or its file system has no locks.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lease = Lease(folder)
        self.own = self._lease.name

    def release(self) -> None:
        """Give up one's own."""
        self._lease.release()

    def dead(self, names: Iterable[str]) -> set[str]:
        """Those of these leases that nobody holds any more.

        Raises:
            StoreError: one of them cannot be looked at.
        """
        try:
            return {one for one in {*names} - {self.own} if not is_held(self._folder, one)}
        except OSError as error:
            why = error.strerror or error
            raise StoreError(f"{self._folder}: a lease cannot be looked at ({why})") from None
