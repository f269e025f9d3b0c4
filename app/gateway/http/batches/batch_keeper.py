"""BatchKeeper: runs the batches of the store that no other program runs."""

from __future__ import annotations

import asyncio
import logging

from app.gateway.faults import Fault
from app.gateway.http.batches.answerer import Answerer
from app.gateway.http.batches.batch_run import BatchRun
from app.gateway.http.batches.room import Room
from app.gateway.http.batches.shelf import Shelf
from app.gateway.loop_thread import pause
from app.gateway.quotas import Quotas
from app.store.store import Store
from app.store.stored_batch import BatchStatus, StoredBatch

log = logging.getLogger(__name__)

# How soon a batch that another program has left is taken over, and a cancellation that was sent to
# it takes effect.
POLL_SECONDS = 2.0


class BatchKeeper:
    """Has a run for each unfinished batch. A user's batches run one after the other, in order of
    arrival, and users take turns, line by line. It is used on one event loop.

    Args:
        rates: each user's rate limit in batches.
    """

    def __init__(self, shelf: Shelf, answerer: Answerer, room: Room, rates: Quotas) -> None:
        self._shelf = shelf
        self._answerer = answerer
        self._room = room
        self._rates = rates
        self._runs: dict[str, BatchRun] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._validating = asyncio.Lock()
        self._turns: dict[str, asyncio.Lock] = {}
        self._poked = asyncio.Event()
        self._trouble = ""

    def poke(self) -> None:
        """Notify that there is another batch, or that one is cancelled."""
        self._poked.set()

    async def run(self) -> None:
        """Run batches until cancelled. Unfinished ones then stay as the store has them, for the
        next keeper."""
        try:
            while True:
                self._poked.clear()
                await self._poll_store()
                await pause(self._poked, POLL_SECONDS)
        finally:
            tasks = tuple(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._shelf.post(_leave)

    async def _poll_store(self) -> None:
        try:
            batches = await self._shelf.call(_adopt_batches)
        except Fault as fault:
            if fault.message != self._trouble:
                log.error("batches wait: %s", fault.message)
            self._trouble = fault.message
            return
        self._trouble = ""
        for batch in batches:
            if (run := self._runs.get(batch.id)) is None:
                self._start(batch)
            elif batch.status is BatchStatus.CANCELLING:
                run.cancel()
        there = {batch.id for batch in batches}
        self._runs = {name: run for name, run in self._runs.items() if name in there}

    def _start(self, batch: StoredBatch) -> None:
        run = self._runs[batch.id] = BatchRun(
            batch,
            shelf=self._shelf,
            answerer=self._answerer,
            room=self._room,
            rates=self._rates,
            validating=self._validating,
            turn=self._turns.setdefault(batch.user, asyncio.Lock()),
        )
        task = self._tasks[batch.id] = asyncio.create_task(_guarded(run, batch.id))
        task.add_done_callback(lambda _: self._tasks.pop(batch.id))


async def _guarded(run: BatchRun, name: str) -> None:
    """Run a batch. A crash in it, which is a bug of ours, ends no other batch; the next start of
    the program restarts it."""
    try:
        await run.go()
    except Exception:
        log.exception("%s failed", name)


def _adopt_batches(store: Store) -> list[StoredBatch]:
    return store.batches.adopt()


def _leave(store: Store) -> None:
    store.batches.leave()
