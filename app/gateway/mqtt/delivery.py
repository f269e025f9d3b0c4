"""Delivery: endings on their way, until the broker has them."""

from __future__ import annotations

import asyncio
import logging

from app.database import StoreError
from app.gateway.mqtt.transport.link import Link, LinkPhase, Outgoing
from app.store import Store

log = logging.getLogger(__name__)

SAVE_SECONDS = 0.2
RETRY_SECONDS = 60.0

# A request's `Caller.key`, and its attempt.
_Attempt = tuple[str, int]


class Delivery:
    """Tells each ending until the broker acknowledges it, through reconnects and restarts.

    The journal knows which were told, so that those that were not are told after a restart. On the
    gateway's loop alone.
    """

    def __init__(self, store: Store, link: Link) -> None:
        self._store = store
        self._link = link
        self._waiting: dict[_Attempt, Outgoing] = {}
        self._under_way: dict[_Attempt, asyncio.Task[None]] = {}
        self._told: list[_Attempt] = []
        self._save_due: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Event = asyncio.Event()
        self._emptied.set()

    def __len__(self) -> int:
        """Endings that the broker does not have yet."""
        return len(self._waiting)

    def add(self, key: str, attempt: int, ending: Outgoing) -> None:
        """Tell an ending that the journal has."""
        self._waiting[key, attempt] = ending
        self._emptied.clear()
        self._go((key, attempt))

    def resume(self) -> None:
        """The link is back: tell again what the broker did not acknowledge."""
        for attempt in tuple(self._waiting):
            self._go(attempt)

    async def drained(self) -> None:
        """Wait until the broker has all."""
        await self._emptied.wait()

    def close(self) -> None:
        """Give up what is under way; the journal keeps it for the next start."""
        for task in self._under_way.values():
            task.cancel()
        self._save()

    def _go(self, attempt: _Attempt) -> None:
        if self._link.state.phase is LinkPhase.ONLINE and attempt not in self._under_way:
            task = asyncio.get_running_loop().create_task(self._deliver(attempt))
            self._under_way[attempt] = task
            task.add_done_callback(lambda _task: self._under_way.pop(attempt, None))

    async def _deliver(self, attempt: _Attempt) -> None:
        if not await self._link.deliver(self._waiting[attempt]):
            # While connected that is the broker's refusal, which its operator may mend.
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._retry, attempt)
            return
        del self._waiting[attempt]
        self._told.append(attempt)
        if not self._waiting:
            self._emptied.set()
        if self._save_due is None:
            # Many at once: one more told after a crash does no harm.
            loop = asyncio.get_running_loop()
            self._save_due = loop.call_later(SAVE_SECONDS, self._save)

    def _retry(self, attempt: _Attempt) -> None:
        if attempt in self._waiting:
            self._go(attempt)

    def _save(self) -> None:
        if self._save_due is not None:
            self._save_due.cancel()
            self._save_due = None
        told, self._told = self._told, []
        if not told:
            return
        try:
            self._store.journal.mark_told(told)
        except StoreError as error:
            log.error("%d endings will be told again after a restart: %s", len(told), error)
