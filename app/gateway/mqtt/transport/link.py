"""Link: a connection to a broker that reconnects forever."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from app.gateway.loop_thread import pause
from app.gateway.mqtt.transport.address import BrokerAddress
from app.gateway.mqtt.transport.connection import Connection
from app.gateway.mqtt.transport.errors import Cause, LinkError, taken_over
from app.gateway.mqtt.transport.messages import Inbound, Outgoing
from app.gateway.mqtt.transport.negotiation import AUTO, connect
from app.gateway.mqtt.transport.outbox import Confirmation, Outcome, settle
from app.gateway.mqtt.transport.twins import TwinWatch

__all__ = ["Inbound", "Link", "LinkPhase", "LinkState", "Outcome", "Outgoing"]

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 30.0
# After a connection that lasted this long, the next pause is short again.
LASTING_SECONDS = 30.0
GOODBYE_SECONDS = 2.0

# More pending messages than a fast enough broker causes. 64 streams of 10 deltas/s make fewer in a
# second.
CONGESTED_MESSAGES = 1000
# Most pending messages. Without a limit, a frozen broker would cost memory until it is noticed.
MAX_MESSAGES = 20_000
# Most pending messages of one flow, so that others still fit.
MAX_OF_FLOW = 2_000
# After this many brief connections we suspect that another program uses our identifier: without
# MQTT 5 a broker does not say so.
SUSPICIOUS_LOSSES = 3
_TOPICS_KEPT = 1000


class LinkPhase(StrEnum):
    CONNECTING = "connecting"
    ONLINE = "online"
    OFFLINE = "offline"
    """There is no connection; a retry follows."""
    TAKEN_OVER = "taken_over"
    """Another program connected with our client identifier. We do not take it back."""
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class LinkState:
    """The state of the connection.

    Attributes:
        detail: why it is not online, in plain words; empty while it is.
        since: when the phase began, in monotonic seconds.
        protocol: "5" or "3.1.1"; empty while not online.
    """

    phase: LinkPhase
    detail: str
    since: float
    protocol: str = ""


class Link:
    """A connection to a broker that reconnects forever. All methods are called on the event loop.

    Nothing is queued while there is no connection: the owner resends unacknowledged messages.

    Args:
        address: the broker.
        client_id: our client identifier, the same for each connection.
        subscriptions: topic filters with their QoS.
        will: the message that the broker publishes if we vanish.
        birth: returns the messages to publish after each connect and subscribe.
        receive: called with each message, and calls `Inbound.ack` once the message is safe. It may
            be called before `changed` reports online; messages that it sends then are sent.
        changed: called with each new state.
        keepalive: seconds between keep-alives; the connection to a silent broker is closed within
            twice that.
        protocol: auto (5 if the broker speaks it, otherwise 3.1.1), 5 or 3.1.1.
        keeps_session: whether the broker keeps our session, and queues messages, for an hour. Use
            False for an identifier that is used only once.

    Attributes:
        received: the number of messages received.
        published: the number of messages passed to a connection.
        denied: how many of these the broker refused. Only MQTT 5 reports that, and only for QoS 1.
        reconnects: the number of connections after the first.
    """

    def __init__(
        self,
        address: BrokerAddress,
        *,
        client_id: str,
        subscriptions: Sequence[tuple[str, int]],
        will: Outgoing | None,
        birth: Callable[[], Sequence[Outgoing]],
        receive: Callable[[Inbound], None],
        changed: Callable[[LinkState], None],
        keepalive: int = 15,
        protocol: str = AUTO,
        keeps_session: bool = True,
    ) -> None:
        self.received = 0
        self.published = 0
        self.denied = 0
        self.reconnects = 0
        self._address = address
        self._client_id = client_id
        self._subscriptions = tuple(subscriptions)
        self._will = will
        self._birth = birth
        self._owner_receives = receive
        self._changed = changed
        self._keepalive = keepalive
        self._protocol = protocol
        self._keeps_session = keeps_session
        self._state = LinkState(LinkPhase.STOPPED, "", time.monotonic())
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._is_closed = False
        self._connected_before = False
        self._twins = TwinWatch(will)
        self._denied_branches: set[str] = set()

    @property
    def state(self) -> LinkState:
        return self._state

    @property
    def max_packet(self) -> int | None:
        """Bytes of the largest packet that the broker accepts; None if not stated."""
        return self._connection.max_packet if self._connection is not None else None

    def congested(self, qos: int, flow: str = "") -> bool:
        """Whether deltas should be held back: more messages are pending before one of this QoS and
        flow than a fast enough broker causes. A flow's unconfirmed messages hold up neither another
        flow nor messages of QoS 0, which are not confirmed."""
        connection = self._connection
        if connection is None:
            return False
        waiting = connection.unwritten
        if qos:
            waiting = max(waiting, connection.outbox.size(flow))
        return waiting >= CONGESTED_MESSAGES

    async def run(self) -> None:
        """Stay connected until closed or taken over. After a takeover it may be called again."""
        if self._task is not None or self._is_closed:
            raise RuntimeError("this link runs already, or was closed")
        self._task = asyncio.create_task(self._run_connections())
        try:
            await self._task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if not self._is_closed or (current is not None and current.cancelling()):
                raise
        finally:
            self._task = None
            if self._state.phase is not LinkPhase.TAKEN_OVER:
                self._change(LinkPhase.STOPPED, "")

    def reconnect(self) -> None:
        """Retry now, if it pauses before the next try."""
        self._hurry.set()

    def send(self, message: Outgoing) -> bool:
        """Publish without waiting; False if there is no connection or far too much is pending."""
        return self._publish(message, None)

    async def deliver(self, message: Outgoing) -> Outcome:
        """Publish with QoS 1, and wait for the outcome."""
        if message.qos != 1:
            raise ValueError(f"only QoS 1 is acknowledged, not {message.qos}")
        confirmation: Confirmation = asyncio.get_running_loop().create_future()
        self._publish(message, confirmation)
        return await confirmation

    async def close(self) -> None:
        """Disconnect cleanly, so that the will is not published, and end `run`.

        Pending messages are written first, for at most `GOODBYE_SECONDS`.
        """
        self._is_closed = True
        if self._connection is not None:
            await self._connection.say_goodbye(GOODBYE_SECONDS)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def _publish(self, message: Outgoing, confirmation: Confirmation | None) -> bool:
        connection = self._connection
        if connection is None or self._is_closed:
            settle(confirmation, Outcome.LOST)
            return False
        size = connection.outbox.size(message.flow) if message.qos else 0
        if connection.waiting >= MAX_MESSAGES or size >= MAX_OF_FLOW:
            settle(confirmation, Outcome.FULL)
            return False
        if not connection.publish(message, confirmation):
            return False
        self._twins.publishes(message)
        self.published += 1
        return True

    async def _run_connections(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        brief = 0
        detail = ""
        self._twins.reset()
        while True:
            self._change(LinkPhase.CONNECTING, detail)
            began = time.monotonic()
            error = await self._live_once()
            if self._is_closed:
                return
            is_lasting = time.monotonic() - began >= LASTING_SECONDS
            if error.was_connected:
                self._twins.lost(is_lasting)
            if error.cause is Cause.TAKEN_OVER:
                self._change(LinkPhase.TAKEN_OVER, str(error))
                return
            if is_lasting:
                pause, brief = FIRST_PAUSE_SECONDS, 0
            brief += error.was_connected
            detail = str(error)
            if brief >= SUSPICIOUS_LOSSES:
                detail += (
                    f", {brief} times shortly after it had let us in: maybe another program uses"
                    f" the client identifier {self._client_id!r}"
                )
            self._change(LinkPhase.OFFLINE, detail)
            await self._wait(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, MAX_PAUSE_SECONDS)

    async def _wait(self, seconds: float) -> None:
        self._hurry.clear()
        await pause(self._hurry, seconds)

    async def _live_once(self) -> LinkError:
        """Connect, and serve until the connection is gone; returns why it is gone."""
        try:
            return await self._serve()
        except LinkError as error:
            return error
        finally:
            if self._connection is not None:
                self._connection.shut()
                self._connection = None

    async def _serve(self) -> LinkError:
        connection = await connect(self._new_connection, self._address, self._protocol)
        if self._connected_before:
            self.reconnects += 1
        self._connected_before = True
        await connection.subscribe_all(self._subscriptions, self._twins.topic)
        if await self._twins.found():
            await connection.say_goodbye(GOODBYE_SECONDS)
            raise taken_over()
        for message in self._birth():
            self.send(message)
        self._change(LinkPhase.ONLINE, "", connection.protocol)
        return await connection.lost

    def _new_connection(self, protocol: str) -> Connection:
        if self._connection is not None:
            self._connection.shut()
        # It is set before the connection is up, so that messages that come with the broker's
        # CONNACK can be answered.
        self._connection = Connection(
            self._address,
            client_id=self._client_id,
            protocol=protocol,
            keepalive=self._keepalive,
            will=self._will,
            receive=self._receive,
            denied=self._deny,
            keeps_session=self._keeps_session,
        )
        return self._connection

    def _receive(self, message: Inbound) -> None:
        if self._twins.receives(message):
            return
        self.received += 1
        try:
            self._owner_receives(message)
        except Exception:
            # The message was not acknowledged, so the broker resends it on the next connection.
            log.exception("a message on %r could not be handled", message.topic)

    def _deny(self, topic: str, reason: str) -> None:
        self.denied += 1
        branch = topic.rpartition("/")[0]
        if branch not in self._denied_branches and len(self._denied_branches) < _TOPICS_KEPT:
            self._denied_branches.add(branch)
            log.warning("the broker refuses what we publish below %r: %s", branch, reason)

    def _change(self, phase: LinkPhase, detail: str, protocol: str = "") -> None:
        if (phase, detail) != (self._state.phase, self._state.detail):
            self._state = LinkState(phase, detail, time.monotonic(), protocol)
            self._changed(self._state)
