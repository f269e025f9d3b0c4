"""Shelf and Sweep: the store of files, batches and chats, for the gateway's loop, and what leaves
it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from app.gateway.faults import Fault
from app.gateway.loop_thread import pause
from app.store.database import StoreError
from app.store.store import Store

log = logging.getLogger(__name__)

T = TypeVar("T")

# Limits of one user.
MOST_FILES = 10_000
MOST_BATCHES = 10_000
MOST_UNFINISHED = 100
# How soon deleted files may have been swept, in milliseconds.
SWEPT_MS = 5000
# Seconds between two equal log lines.
LOG_SECONDS = 60.0
# How long an ended batch is kept.
BATCH_SECONDS = 30 * 24 * 3600.0
SWEEP_SECONDS = 3600.0
# Pages of 4 KiB that are returned at once.
PAGES = 256
# Pause between two parts, so that others may write.
PAUSE_SECONDS = 0.03


class Shelf:
    """Calls the store on its own thread, so that the loop waits for no disk. Calls run in order.

    The first call opens the store, and each later one tries again while that fails: chat over HTTP
    does not need it.

    Args:
        stored_bytes: returns the limit of bytes for a user's files.
    """

    def __init__(self, file: Path, stored_bytes: Callable[[str], int]) -> None:
        self._file = file
        self._stored_bytes = stored_bytes
        self._trouble, self._logged_at = "", 0.0
        self._store: Store | None = None
        self._thread = ThreadPoolExecutor(1, "http-store")
        self._is_closed = False

    async def call(self, call: Callable[[Store], T]) -> T:
        """The result of a call with the store. Once begun, the call completes even if its caller is
        cancelled.

        Raises:
            Fault: 503, the store could not be opened, read or written; the log says why.
        """
        return await asyncio.wrap_future(self._thread.submit(self._do, call))

    def post(self, call: Callable[[Store], object]) -> None:
        """Make a call later, even if the caller is cancelled; errors are logged."""

        def call_and_log() -> None:
            try:
                self._do(call)
            except Fault as fault:
                log.error("%s", fault.message)

        self._thread.submit(call_and_log)

    def check_file(self, store: Store, user: str, num_bytes: int) -> None:
        """Check that a user may store `num_bytes` more; called with `call`.

        Raises:
            Fault: 413, they have too much; 429, their deleted files are still being removed.
        """
        count, stored, deleted = store.files.usage(user)
        most = self._stored_bytes(user)
        text = f"the files of user {user!r} have {stored} bytes"
        if count > MOST_FILES:
            text = f"user {user!r} has {count} files; at most {MOST_FILES} are allowed"
            raise Fault(413, f"{text}: delete some", "file", reason="user over files")
        if stored + num_bytes > most:
            text += f", and {num_bytes} more are to come; at most {most} are allowed: delete some"
            raise Fault(413, text, "file", reason="user over storage")
        if stored + num_bytes + deleted > most:
            text += f", and {deleted} that were deleted are being removed; at most {most} are"
            text += " allowed"
            raise Fault(429, text, reason="user over storage", retry_after_ms=SWEPT_MS)

    def is_full(self, store: Store, user: str) -> bool:
        """Whether a user's storage is full; called with `call`."""
        return store.files.usage(user).num_bytes >= self._stored_bytes(user)

    def check_batch(self, store: Store, user: str) -> None:
        """Check that a user may begin another batch; called with `call`.

        Raises:
            Fault: 413, their files are full; 429, they have too many batches.
        """
        self.check_file(store, user, 0)
        count, unfinished = store.batches.counts(user)
        for number, most, kind in (
            (unfinished, MOST_UNFINISHED, "unfinished batches"),
            (count, MOST_BATCHES, "batches of the last 30 days"),
        ):
            if number >= most:
                text = f"user {user!r} has {number} {kind}; at most {most} are allowed"
                raise Fault(429, text, reason="user over batches", retry_after_ms=60_000)

    def close(self) -> None:
        """Close the store after all pending calls, and wait for that. No calls may follow; closing
        again does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._thread.submit(self._close)
            self._thread.shutdown()

    def _do(self, call: Callable[[Store], T]) -> T:
        try:
            if self._store is None:
                self._store = Store(self._file)
            return call(self._store)
        except StoreError as error:
            now = time.monotonic()
            if str(error) != self._trouble or now > self._logged_at + LOG_SECONDS:
                self._trouble, self._logged_at = str(error), now
                log.error("%s", error)
            # Clients must not see paths on the server.
            text = "the server's store cannot be used now; the server's log"
            raise Fault(503, f"{text} says why", reason="store") from error

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()


class Sweep:
    """Works in small parts, each in its own transaction."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._poked = asyncio.Event()

    def poke(self) -> None:
        """Notify that something was deleted."""
        self._poked.set()

    async def run(self) -> None:
        """Sweep now, every hour and when poked, until cancelled."""
        while True:
            self._poked.clear()
            try:
                while await self._shelf.call(_sweep):
                    await asyncio.sleep(PAUSE_SECONDS)
            except Fault as fault:
                log.error("unneeded files could not be removed: %s", fault.message)
            await pause(self._poked, SWEEP_SECONDS)


def _sweep(store: Store) -> bool:
    """Remove a part; False if nothing was left."""
    if store.files.sweep() or store.batches.forget(time.time() - BATCH_SECONDS):
        return True
    return store.shrink(PAGES) > 0
