"""Delivery: publishes each ending until the broker has it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from app.gateway.mqtt.exchange import ReplyTo, ending_of, without_text
from app.gateway.mqtt.protocol.topics import Caller
from app.gateway.mqtt.transport.link import Link, LinkPhase, Outcome, Outgoing
from app.gateway.sources import MQTT
from app.store.database import StoreError
from app.store.store import Store

log = logging.getLogger(__name__)

SAVE_SECONDS = 0.2
# The pause before a retry on a link whose queue was full.
RETRY_SECONDS = 1.0
# The pause before a retry of an ending that the broker refused. It doubles each time, for 15
# minutes in all, so that an operator may fix the cause.
REFUSED_SECONDS = 60.0
MAX_REFUSALS = 5

# A request's `Caller.key`, and its attempt.
_Attempt = tuple[str, int]


async def deliver_ending(link: Link, ending: Outgoing) -> Outcome:
    """Publish an ending. If it is too large for the broker, publish an error that says so
    instead."""
    outcome = await link.deliver(ending)
    if outcome is Outcome.TOO_LARGE:
        shorter = without_text(ending.payload, ending.packet_bytes, link.max_packet)
        outcome = await link.deliver(replace(ending, payload=shorter))
    return outcome


class Delivery:
    """Publishes each ending until the broker acknowledges it, through reconnects and restarts. An
    ending that the broker keeps refusing is dropped: its access list would refuse it forever.

    The journal records which endings were delivered, so that the others are published after a
    restart. All methods are called on the gateway's loop.
    """

    def __init__(self, store: Store, link: Link) -> None:
        self._store = store
        self._link = link
        self._waiting: dict[_Attempt, Outgoing] = {}
        self._under_way: dict[_Attempt, asyncio.Task[None]] = {}
        self._refusals: dict[_Attempt, int] = {}
        self._delivered: list[_Attempt] = []
        self._save_due: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Event = asyncio.Event()
        self._emptied.set()

    def __len__(self) -> int:
        """The number of endings that the broker does not have yet."""
        return len(self._waiting)

    def adopt(self, pool: str) -> None:
        """Take over from dead processes of the same store: publish the endings that they left
        undelivered, and end the requests that they left open.

        Raises:
            StoreError: the journal cannot be read or written.
        """
        journal, prefix = self._store.journal, f"{pool}/"
        if not journal.adopt(MQTT, prefix):
            return
        for entry in journal.undelivered(MQTT, prefix):
            try:
                ending = ending_of(Caller.of(entry.request_id), entry)
                assert ending is not None
                message = ReplyTo.load(entry.reply_to).message(ending)
            except (ValueError, TypeError, LookupError) as error:
                # Its cells are damaged; the others are published.
                log.error(
                    "the ending of %s cannot be delivered: %s", ascii(entry.request_id), error
                )
                continue
            self.publish(entry.request_id, entry.attempt, message)

    def publish(self, key: str, attempt: int, ending: Outgoing) -> None:
        """Publish an ending from the journal, unless that is done or in progress."""
        if (key, attempt) in self._waiting or (key, attempt) in self._delivered:
            return
        self._waiting[key, attempt] = ending
        self._emptied.clear()
        self._go((key, attempt))

    def resume(self) -> None:
        """Republish unacknowledged endings, after a reconnect."""
        for attempt in tuple(self._waiting):
            self._go(attempt)

    async def drained(self) -> None:
        """Wait until the broker has all endings."""
        await self._emptied.wait()

    def close(self) -> None:
        """Leave undelivered endings to the next start, which reads them from the journal."""
        for task in self._under_way.values():
            task.cancel()
        self._save()

    def _go(self, attempt: _Attempt) -> None:
        if self._link.state.phase is LinkPhase.ONLINE and attempt not in self._under_way:
            task = asyncio.get_running_loop().create_task(self._deliver(attempt))
            self._under_way[attempt] = task
            task.add_done_callback(lambda _task: self._under_way.pop(attempt, None))

    async def _deliver(self, attempt: _Attempt) -> None:
        message = self._waiting[attempt]
        match await deliver_ending(self._link, message):
            case Outcome.ACKNOWLEDGED:
                self._settle(attempt)
            case Outcome.FULL:
                self._retry_after(RETRY_SECONDS, attempt)
            case Outcome.REFUSED:
                refusals = self._refusals[attempt] = self._refusals.get(attempt, 0) + 1
                if refusals < MAX_REFUSALS:
                    self._retry_after(REFUSED_SECONDS * 2 ** (refusals - 1), attempt)
                else:
                    self._drop(attempt, f"the broker refused it {refusals} times")
            case Outcome.TOO_LARGE:
                self._drop(attempt, f"the broker takes {self._link.max_packet} bytes at most")
            case Outcome.LOST:
                # `resume` republishes it after a reconnect, unless that came before this loss was
                # handled; without this retry it would then never be published.
                self._retry_after(RETRY_SECONDS, attempt)

    def _settle(self, attempt: _Attempt) -> None:
        """Mark an ending as settled."""
        del self._waiting[attempt]
        self._refusals.pop(attempt, None)
        self._delivered.append(attempt)
        if not self._waiting:
            self._emptied.set()
        if self._save_due is None:
            # Many are saved at once. After a crash some are published again, which does no harm.
            loop = asyncio.get_running_loop()
            self._save_due = loop.call_later(SAVE_SECONDS, self._save)

    def _drop(self, attempt: _Attempt, why: str) -> None:
        """Drop an ending, also for later starts. If the request is sent again, the journal answers
        it."""
        log.error("the ending of %s cannot be delivered: %s", ascii(attempt[0]), why)
        self._settle(attempt)

    def _retry_after(self, seconds: float, attempt: _Attempt) -> None:
        asyncio.get_running_loop().call_later(seconds, self._retry, attempt)

    def _retry(self, attempt: _Attempt) -> None:
        if attempt in self._waiting:
            self._go(attempt)

    def _save(self) -> None:
        if self._save_due is not None:
            self._save_due.cancel()
            self._save_due = None
        delivered, self._delivered = self._delivered, []
        if not delivered:
            return
        try:
            self._store.journal.mark_delivered(delivered)
        except StoreError as error:
            log.error(
                "%d endings will be delivered again after a restart: %s", len(delivered), error
            )
