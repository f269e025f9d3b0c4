"""Sweep: removes expired files and batches, and returns their space."""

from __future__ import annotations

import asyncio
import logging
import time

from app.gateway.faults import Fault
from app.gateway.http.batches.pause import pause
from app.gateway.http.batches.shelf import Shelf
from app.store.store import Store

log = logging.getLogger(__name__)

# How long an ended batch is kept.
BATCH_SECONDS = 30 * 24 * 3600.0
LOOK_SECONDS = 3600.0
# Pages of 4 KiB that are returned at once.
PAGES = 256
# Pause between two parts, so that others may write.
PAUSE_SECONDS = 0.03


class Sweep:
    """Works in small parts, each in its own transaction."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._poked = asyncio.Event()

    def poke(self) -> None:
        """Notify that something was deleted."""
        self._poked.set()

    async def keep(self) -> None:
        """Sweep now, every hour and when poked, until cancelled."""
        while True:
            self._poked.clear()
            try:
                while await self._shelf.ask(_sweep):
                    await asyncio.sleep(PAUSE_SECONDS)
            except Fault as fault:
                log.error("files that nobody needs are kept: %s", fault.message)
            await pause(self._poked, LOOK_SECONDS)


def _sweep(store: Store) -> bool:
    """Remove a part; False if nothing was left."""
    if store.files.sweep() or store.batches.forget(time.time() - BATCH_SECONDS):
        return True
    return store.shrink(PAGES) > 0
