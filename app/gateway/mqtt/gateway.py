"""MqttGateway: passes chat requests from a broker to the engine, and the replies back."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from app.gateway.faults import Fault
from app.gateway.loop_thread import LoopThread, ThreadedGateway
from app.gateway.mqtt.delivery import Delivery
from app.gateway.mqtt.exchanges import Exchanges
from app.gateway.mqtt.intake import Intake
from app.gateway.mqtt.knobs import KnobsTopic
from app.gateway.mqtt.node import Node, percentiles
from app.gateway.mqtt.protocol.cards import MqttMetrics
from app.gateway.mqtt.protocol.topics import Topics
from app.gateway.mqtt.retention import Retention
from app.gateway.mqtt.settings import MqttSettings
from app.gateway.mqtt.transport.address import BrokerAddress
from app.gateway.mqtt.transport.link import Inbound, Link, LinkPhase, LinkState
from app.gateway.mqtt.view import MqttView
from app.gateway.quotas import Quotas
from app.gateway.tally import Tally
from app.gateway.view import Transcript
from app.store.database import StoreError
from app.store.store import Store
from engine.api.client import EngineClient

log = logging.getLogger(__name__)

# Most messages that are processed at once and journalled in one transaction.
BATCH = 64
VIEW_SECONDS = 0.25
POLL_SECONDS = 1.0
# Time for the cards of other nodes to arrive after a connect.
SETTLE_SECONDS = 0.25
# Timeout for storing and publishing endings once nothing runs.
FAREWELL_SECONDS = 5.0
# Waiting for the store's lock blocks the loop; failed writes are retried.
BUSY_SECONDS = 1.0

ENDING = Fault(503, "the server is shutting down; ask again", reason="draining")


class MqttGateway(ThreadedGateway):
    """A separate thread with an event loop, so that neither the screen nor a step waits for it.

    It has its own connection to the store for the same reason. A failure on the loop ends the
    gateway, because the requests concerned would never get an ending: its next start publishes them
    from the journal.

    Args:
        address: of the broker.
        sampling: for fields that a request leaves open, over the model's defaults.
        system: system prompt of chats that state none.

    Raises:
        StoreError: the store cannot be opened.
    """

    def __init__(
        self,
        client: EngineClient,
        settings: MqttSettings,
        address: BrokerAddress,
        store_file: Path,
        *,
        sampling: Mapping[str, object] | None = None,
        system: str = "",
    ) -> None:
        self._client = client
        self._settings = settings
        self._address = address
        self._store = Store(store_file, busy_seconds=BUSY_SECONDS)
        self._thread = LoopThread(
            "mqtt", "the MQTT gateway", self._serve, (self._abandon, self._store.close)
        )
        self._loop = self._thread.loop
        self._inbox: deque[Inbound] = deque()
        self._closing = asyncio.Event()
        self._resumed = asyncio.Event()
        self._drain_seconds = settings.drain_seconds

        topics = self._topics = Topics(settings.pool, settings.node)
        self._tally = Tally(time.monotonic)
        self._node = Node(settings, topics, self._figures)
        self._knobs = KnobsTopic(client, topics)
        self._link = self._make_link()
        self._quotas = Quotas(settings.quota, settings.users, self._tally.pace, time.monotonic)
        self._retention = Retention(self._store, settings.pool, settings.retention_days)
        self._delivery = Delivery(self._store, self._link)
        self._exchanges = Exchanges(
            client=client,
            store=self._store,
            link=self._link,
            delivery=self._delivery,
            quotas=self._quotas,
            tally=self._tally,
            interval=settings.delta_ms / 1000.0,
            sampling=dict(sampling or {}),
            deadline_ms=settings.deadline_ms,
            separate_caches=settings.separate_caches,
            loop=self._loop,
            clock=time.monotonic,
        )
        self._intake = self._make_intake(system)
        self._view = self._current_view()

    def _make_link(self) -> Link:
        settings, topics = self._settings, self._topics
        return Link(
            self._address,
            client_id=_client_id(settings),
            # Cards first: they say whether this node must answer the requests. With QoS 0 no card
            # waits for requests to be acknowledged.
            subscriptions=(
                (topics.all_status, 0),
                *((topic, 1) for topic in (topics.cancels, topics.requests, topics.knobs_set)),
            ),
            will=self._node.farewell,
            birth=lambda: (self._node.join(),),
            receive=self._receive,
            changed=self._changed,
            keepalive=settings.keepalive,
            protocol=settings.protocol,
        )

    def _make_intake(self, system: str) -> Intake:
        return Intake(
            client=self._client,
            settings=self._settings,
            topics=self._topics,
            store=self._store,
            link=self._link,
            exchanges=self._exchanges,
            quotas=self._quotas,
            tally=self._tally,
            node=self._node,
            system=system,
            clock=time.monotonic,
        )

    @property
    def failure(self) -> str:
        """The reason why it has ended, until a `reconnect` that can help; empty if it has not."""
        state = self._link.state
        return self._thread.crash or (state.detail if state.phase is LinkPhase.TAKEN_OVER else "")

    def view(self) -> MqttView:
        return self._view

    def transcript(self, request_id: str) -> Transcript | None:
        # Nothing updates its state after the end.
        return None if self._thread.has_ended else self._exchanges.transcript(request_id)

    def holds(self, conversation_id: str) -> bool:
        return not self._thread.has_ended and self._exchanges.holds(conversation_id)

    def reconnect(self) -> None:
        self._thread.call(self._reconnect)

    # Called on the loop.

    def _abandon(self) -> None:
        """Abort all replies, which have no reader any more."""
        for exchange in self._exchanges:
            self._client.abort(exchange.engine_id)
        self._view = self._current_view()

    async def _serve(self) -> None:
        self._delivery.adopt(self._topics.pool)
        async with asyncio.TaskGroup() as tasks:
            serving = [
                tasks.create_task(self._thread.guard(task()))
                for task in (self._run_link, self._tick, self._retention.run)
            ]
            until = [tasks.create_task(e.wait()) for e in (self._closing, self._thread.failed)]
            await asyncio.wait(until, return_when=asyncio.FIRST_COMPLETED)
            if not self._thread.failed.is_set():
                await self._drain()
                await self._link.close()
            for task in (*serving, *until):
                task.cancel()
        self._delivery.close()

    async def _run_link(self) -> None:
        """Stay connected; after another server has taken our place, wait for `reconnect`."""
        while True:
            self._resumed.clear()
            await self._link.run()
            await self._resumed.wait()

    async def _drain(self) -> None:
        """Let requests end, then cancel them, and wait until their clients and all others know."""
        self._node.closing = True
        self._node.announce(self._link)
        deadline = time.monotonic()
        while len(self._exchanges) and time.monotonic() < deadline + self._drain_seconds:
            await asyncio.sleep(0.02)
        self._exchanges.cancel(self._exchanges, ENDING)
        try:
            async with asyncio.timeout(FAREWELL_SECONDS):
                while len(self._exchanges) or self._inbox:
                    await asyncio.sleep(0.01)
                # Refusals too: queued ones are lost with the connection, and their clients would
                # get nothing until the next start.
                await self._intake.answered()
                if self._link.state.phase is LinkPhase.ONLINE:
                    await self._delivery.drained()
        except TimeoutError:
            log.warning(
                "%d requests and %d endings are left to be delivered after the next start",
                len(self._exchanges),
                len(self._delivery),
            )
        # A clean disconnect suppresses the will. With QoS 0 it queues behind no unconfirmed
        # message.
        self._link.send(replace(self._node.farewell, qos=0))

    def _reconnect(self) -> None:
        if self._link.state.phase is LinkPhase.TAKEN_OVER:
            self._resumed.set()
        else:
            self._link.reconnect()

    def _close(self, drain_seconds: float | None) -> None:
        if drain_seconds is not None:
            self._drain_seconds = drain_seconds
        self._closing.set()

    async def _tick(self) -> None:
        """Refresh the view, and this node's data on the broker."""
        poll_at = 0.0
        while True:
            if (now := time.monotonic()) >= poll_at:
                poll_at = now + POLL_SECONDS
                snapshot = self._client.snapshot()
                self._node.update(snapshot, self._link)
                self._knobs.update(snapshot, self._link)
                self._adopt_requests()
            self._view = self._current_view()
            await asyncio.sleep(VIEW_SECONDS)

    def _adopt_requests(self) -> None:
        """End the requests that a killed server of the same store has accepted, if this node serves
        the pool in its place: no other process may ever open the store again."""
        if self._node.elder or self._link.state.phase is not LinkPhase.ONLINE:
            return
        try:
            self._delivery.adopt(self._topics.pool)
        except StoreError as error:
            log.error("%s", error)

    def _changed(self, state: LinkState) -> None:
        match state.phase:
            case LinkPhase.CONNECTING:
                self._node.leave()
            case LinkPhase.ONLINE:
                log.info("connected to %s", self._address)
                self._knobs.forget()
                self._delivery.resume()
            case LinkPhase.OFFLINE:
                log.warning("%s: %s", self._address, state.detail)
            case LinkPhase.TAKEN_OVER:
                log.error("%s: %s", self._address, state.detail)
        self._view = self._current_view()

    def _receive(self, message: Inbound) -> None:
        if message.topic == self._topics.knobs_set:
            self._knobs.obey(message, self._link)
            return
        if self._topics.is_status(message.topic):
            had_elder = bool(self._node.elder)
            self._node.hear(message.topic, message.payload, self._link)
            if had_elder and not self._node.elder:
                self._adopt_requests()
            message.ack()
            return
        if not self._inbox:
            # Retained requests come before the cards, and may be another node's to answer.
            is_kept = self._link.state.phase is not LinkPhase.ONLINE
            self._loop.call_later(SETTLE_SECONDS if is_kept else 0.0, self._process_inbox)
        self._inbox.append(message)

    def _process_inbox(self) -> None:
        batch = [self._inbox.popleft() for _ in range(min(BATCH, len(self._inbox)))]
        if self._inbox:
            self._loop.call_soon(self._process_inbox)
        self._intake.process(batch)

    def _current_view(self) -> MqttView:
        link, tally, exchanges, state = self._link, self._tally, self._exchanges, self._link.state
        return MqttView(
            time=time.monotonic(),
            address=str(self._address),
            pool=self._topics.pool,
            node=self._topics.node,
            phase=state.phase,
            detail=state.detail or self._node.detail,
            since=state.since,
            protocol=state.protocol,
            running=len(exchanges),
            waiting=exchanges.num_waiting,
            undelivered=len(self._delivery),
            received=link.received,
            published=link.published,
            accepted=tally.accepted,
            finished=tally.finished,
            rejected=tally.rejected,
            first_token=tally.first_tokens,
            bad=tally.bad_messages,
            users=tally.users((one.caller.user, one.started) for one in exchanges),
        )

    def _figures(self) -> MqttMetrics:
        return MqttMetrics(
            running=len(self._exchanges),
            waiting=self._exchanges.num_waiting,
            accepted=self._tally.accepted,
            finished=self._tally.finished,
            rejected=sum(rejection.count for rejection in self._tally.rejected),
            first_token_ms=percentiles(self._tally.first_tokens),
        )


def _client_id(settings: MqttSettings) -> str:
    """One for each node of each pool; the hash is needed because a level may contain any
    separator."""
    place = f"{settings.pool}/{settings.node}"
    return f"batchdeck-{settings.node}-{hashlib.sha256(place.encode()).hexdigest()[:8]}"
