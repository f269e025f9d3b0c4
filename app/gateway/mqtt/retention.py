"""Retention: removes expired requests and conversations of MQTT from the store."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from app.gateway.sources import MQTT
from app.store.database import StoreError
from app.store.store import Store

log = logging.getLogger(__name__)

DAY = 24 * 3600.0
# For how long a request that is sent again gets its stored ending.
JOURNAL_SECONDS = DAY
SWEEP_SECONDS = 3600.0
# The most conversations and requests that are removed in one transaction, and the most pages of 4
# KiB that are returned. Two conversations of ten turns took 3.5 ms and 256 pages 2.7 ms, on a busy
# machine.
SLICE = 2
REQUESTS = 500
PAGES = 256
PAUSE_SECONDS = 0.05


class Retention:
    """Removes expired requests and abandoned conversations, and shrinks the file. It works in small
    slices on a thread, so that neither the loop nor another writer waits for long.

    Args:
        pool: the pool whose conversations are removed. Those of the screen never are.
        days: a conversation is removed after so many days without a new turn; 0 keeps all.
        clock: seconds since the epoch.
    """

    def __init__(
        self, store: Store, pool: str, days: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._prefix = f"{MQTT}/{pool}/"
        self._days = days
        self._clock = clock

    async def run(self) -> None:
        """Sweep every hour, until cancelled."""
        while True:
            await self.sweep()
            await asyncio.sleep(SWEEP_SECONDS)

    async def sweep(self) -> None:
        """Remove everything that has expired."""
        forgotten = 0
        try:
            while (found := await asyncio.to_thread(self._remove)) is not None:
                forgotten += found
                await asyncio.sleep(PAUSE_SECONDS)
        except StoreError as error:
            log.error("%s", error)
        if forgotten:
            log.info(
                "forgot %d conversations that were not continued for %g days",
                forgotten,
                self._days,
            )

    def _remove(self) -> int | None:
        """Remove a slice; returns its number of conversations, or None if nothing is left to do."""
        now, store = self._clock(), self._store
        requests = store.journal.forget(MQTT, now - JOURNAL_SECONDS, REQUESTS)
        conversations = 0
        if self._days:
            conversations = store.forget(MQTT, self._prefix, now - self._days * DAY, SLICE)
        if requests or conversations or store.shrink(PAGES) > 0:
            return conversations
        return None
