"""Exchanges: passes output from the engine's streams to the clients of running requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress

from app.gateway.exchange import ENDED_KEPT, Waker, fault_of, log_end
from app.gateway.faults import Fault
from app.gateway.mqtt.delivery import Delivery
from app.gateway.mqtt.exchange import Exchange
from app.gateway.mqtt.transport.link import Link
from app.gateway.quotas import Quotas
from app.gateway.sources import MQTT
from app.gateway.tally import Tally
from app.gateway.view import Transcript
from app.store.database import DeletedError, StoreError
from app.store.store import Store
from engine.api.client import EngineClient

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
# The pause before a retry on a link whose queue was full.
HELD_SECONDS = 0.02


class Exchanges:
    """The running requests. `wake` and `transcript` may be called from any thread, all else is
    called on the gateway's loop.

    The engine wakes the loop at most once a step. A reply's first text is sent at once. Later text
    is sent every `interval` seconds, or later, when the link's queue has space again. With a delta
    for each token, 64 streams of 40 tokens/s take 0.055 cores; with one every 100 ms they take
    0.023 (benchmarks.mqtt).

    An ending is journalled before it is published; endings of one step share a transaction. While
    the store cannot be written, endings are held and retried. If they were published first, a
    second ending could follow after a crash.

    Args:
        interval: seconds between two deltas of a reply.
        sampling: defaults for parameters that a request does not state.
        deadline_ms: how long a request may wait for the batch, by default.
        separate_caches: whether users do not find each other's prefixes in the cache.
        clock: monotonic seconds.

    Attributes:
        num_waiting: how many of the open requests have no first token. It is a running count,
            because every new request reads it.
    """

    def __init__(
        self,
        *,
        client: EngineClient,
        store: Store,
        link: Link,
        delivery: Delivery,
        quotas: Quotas,
        tally: Tally,
        interval: float,
        sampling: Mapping[str, object],
        deadline_ms: int,
        separate_caches: bool,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._store = store
        self._link = link
        self._delivery = delivery
        self._quotas = quotas
        self._tally = tally
        self._interval = interval
        self._sampling = sampling
        self._deadline_ms = deadline_ms
        self._separate_caches = separate_caches
        self._clock = clock
        self._loop = loop
        self.num_waiting = 0
        self._open: dict[str, Exchange] = {}
        self._unsaved: list[Exchange] = []
        self._kept: dict[str, Exchange] = {}  # oldest first
        self._newest: dict[str, Exchange] = {}
        self.wake = Waker(loop, self.poll).wake
        self._flush_due = False
        self._retry_due = False

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Exchange]:
        return iter(tuple(self._open.values()))

    def get(self, key: str) -> Exchange | None:
        """The unfinished attempt at the request with this `Caller.key`, if there is one."""
        return self._open.get(key)

    def is_busy(self, conversation_id: str) -> bool:
        """Whether a reply of this conversation is in progress here."""
        exchange = self._newest.get(conversation_id)
        return exchange is not None and exchange.key in self._open

    def reserve(self, exchange: Exchange) -> None:
        """Add a request before it is journalled; `start` or `withdraw` follows."""
        self._open[exchange.key] = exchange
        self._newest[exchange.conversation.id] = exchange
        self._quotas.opened(exchange.caller.user)
        self.num_waiting += 1

    def withdraw(self, exchange: Exchange) -> None:
        """Remove a reserved request that could not be journalled."""
        del self._newest[exchange.conversation.id]
        self._close(exchange)

    def start(self, exchange: Exchange) -> None:
        """Submit a journalled request to the engine."""
        self._tally.accepted += 1
        self._retain(exchange)
        submission = exchange.submission(
            self._sampling, self._deadline_ms, separate_caches=self._separate_caches
        )
        exchange.stream = self._client.submit(submission, self.wake)

    def cancel(self, exchanges: Iterable[Exchange], fault: Fault) -> None:
        """Abort these in the engine; `fault` is their callers' error."""
        for exchange in exchanges:
            exchange.refusal = exchange.refusal or fault
            self._client.abort(exchange.engine_id)

    def poll(self) -> None:
        """Drain the engine's streams."""
        now = self._clock()
        ended: list[Exchange] = []
        for exchange in self:
            was_started = exchange.started
            if exchange.finish is not None or not exchange.drain():
                continue
            if exchange.started and not was_started:
                self.num_waiting -= 1
                self._tally.first_token(now - exchange.published_at)
            if exchange.finish is not None:
                ended.append(exchange)
                continue
            if exchange.refusal is None and (fault := exchange.excess) is not None:
                self.cancel([exchange], fault)
            if exchange.has_unsent:
                self._send_delta(exchange, now)
        if ended:
            self._end(ended)

    def transcript(self, engine_id: str) -> Transcript | None:
        """The chat of a running or recently ended attempt, in its current state. May be called from
        any thread."""
        exchange = self._kept.get(engine_id)
        if exchange is None:
            return None
        return self._newest.get(exchange.conversation.id, exchange).transcript()

    def holds(self, conversation_id: str) -> bool:
        """Whether `transcript` has this chat. May be called from any thread."""
        return conversation_id in self._newest

    def _send_delta(self, exchange: Exchange, now: float) -> None:
        """Send a delta, now if one is due, otherwise at the next flush."""
        if not exchange.request.stream:
            exchange.forget()
            return
        due = exchange.delta_sent_at is None or now - exchange.delta_sent_at >= self._interval
        if due and not self._is_held(exchange):
            message = exchange.delta(now)
            self._link.send(message)
        elif not self._flush_due:
            self._flush_due = True
            self._loop.call_later(max(self._interval, HELD_SECONDS), self._flush)

    def _is_held(self, exchange: Exchange) -> bool:
        return self._link.congested(exchange.request.delta_qos, exchange.caller.user)

    def _flush(self) -> None:
        """Send the text that is still unsent."""
        self._flush_due = False
        now = self._clock()
        for exchange in self:
            if exchange.has_unsent and exchange.finish is None:
                self._send_delta(exchange, now)

    def _end(self, ended: list[Exchange]) -> None:
        """Journal endings, then publish them."""
        self._unsaved += ended
        for exchange in ended:
            exchange.history.finish(exchange.reply, exchange.finish)
            if exchange.has_unsent and exchange.request.stream and not self._is_held(exchange):
                self._link.send(exchange.delta(self._clock()))
        self._save()

    def _save(self) -> None:
        ended, self._unsaved = self._unsaved, []
        endings = [(exchange, exchange.ending()) for exchange in ended]
        try:
            with self._store.transaction():
                for exchange, ending in endings:
                    self._journal(exchange, ending)
        except StoreError as error:
            log.error("%d endings wait for the journal: %s", len(ended), error)
            self._unsaved = ended
            if not self._retry_due:
                self._retry_due = True
                self._loop.call_later(RETRY_SECONDS, self._retry)
            return
        for exchange, ending in endings:
            self._close(exchange)
            self._tally.ended()
            log_end(
                exchange.caller.user,
                MQTT,
                self._client.status().model,
                exchange.engine_id,
                exchange.stream,
                exchange.finish,
                fault_of(exchange.finish, exchange.refusal),
            )
            self._delivery.publish(
                exchange.key, exchange.attempt, exchange.reply_to.message(ending)
            )

    def _close(self, exchange: Exchange) -> None:
        del self._open[exchange.key]
        # Its transcript is kept without unsent output.
        exchange.logprobs, exchange.prompt_logprobs = [], []
        self._quotas.ended(exchange.caller.user)
        self.num_waiting -= not exchange.started

    def _retry(self) -> None:
        self._retry_due = False
        if self._unsaved:
            self._save()

    def _journal(self, exchange: Exchange, ending: bytes) -> None:
        finish = exchange.finish
        assert finish is not None
        # If the conversation was deleted on the screen, its client still gets the ending.
        with suppress(DeletedError):
            exchange.history.save()
        is_first = self._store.journal.end(
            exchange.key,
            finish.reason,
            finish.error,
            attempt=exchange.attempt,
            ending=ending.decode(),
        )
        if not is_first:
            log.error("%s had an ending in the journal already", exchange.engine_id)

    def _retain(self, exchange: Exchange) -> None:
        """Keep a request available for `transcript`, with the last ones that ended."""
        self._kept[exchange.engine_id] = exchange
        for engine_id in tuple(self._kept):
            if len(self._kept) <= len(self._open) + ENDED_KEPT:
                break
            old = self._kept[engine_id]
            if old.key not in self._open:
                del self._kept[engine_id]
                if self._newest.get(old.conversation.id) is old:
                    del self._newest[old.conversation.id]
