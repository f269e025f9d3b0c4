"""Connection: one connection to a broker, on aiomqtt and paho.

Deviations from aiomqtt 2.5.1 and paho 2.2, and why:

- Messages are passed to their owner as they come, and acknowledged when it says so; aiomqtt
  acknowledges first.
- A publish is confirmed with the broker's reason code; aiomqtt treats a refusal as a success.
- The `Outbox` picks the next publish; paho has one queue for all.
- A connection is made once. After a reconnect paho sends messages that were published while
  offline.
- `dialing` opens the socket. aiomqtt's thread goes on connecting when its task is cancelled, and
  delays the end of the program.
- An error in reading ends the connection; aiomqtt holds it for the reader of its queue.
- `SocketPump` reads and writes the socket; its docstring says what that saves.

So aiomqtt configures paho (login, will, version) and subscribes; all else uses paho's public
callbacks for a foreign event loop. Three private names are left, each in one place:

- `aiomqtt.Client._client`, the paho client; aiomqtt has no other access (`Connection.__init__`).
- `paho.Client._create_socket`; paho accepts no socket otherwise (`Connection.dial`).
- `paho.mqtt.client._WebsocketWrapper`; paho has no other websocket (`dialing.Websocket`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import aiomqtt
from paho.mqtt.client import Client as PahoClient
from paho.mqtt.client import DisconnectFlags, MQTTMessage
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from app.gateway.mqtt.transport.address import BrokerAddress
from app.gateway.mqtt.transport.dialing import (
    CONNECT_SECONDS,
    acknowledge_now,
    on_thread,
    open_socket,
)
from app.gateway.mqtt.transport.errors import (
    KEEPALIVE_TIMEOUT,
    PROTOCOL_ERROR,
    LinkError,
    broken,
    dismissed,
    refused,
    unreachable,
    unreadable,
)
from app.gateway.mqtt.transport.messages import Inbound, Outgoing
from app.gateway.mqtt.transport.outbox import WINDOW, Confirmation, Outbox, Outcome, settle
from app.gateway.mqtt.transport.packets import (
    check_subscribed,
    connect_options,
    inbound,
    publish_properties,
    topic_filters,
)
from app.gateway.mqtt.transport.pump import SocketPump

V5, V311 = "5", "3.1.1"


class PahoLog(logging.Handler):
    """Keeps the last error.

    Attributes:
        logger: the logger for paho.
        error: the last exception that it logged, if any.
    """

    def __init__(self) -> None:
        super().__init__()
        self.error: BaseException | None = None
        # Neither registered nor below another logger: paho's records go nowhere else.
        self.logger = logging.Logger("paho", logging.ERROR)
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        for argument in record.args or ():
            if isinstance(argument, BaseException):
                self.error = argument


class Connection:
    """One connection, from before it is made until it is gone.

    Args:
        protocol: `V5` or `V311`.
        denied: called with the topic of each publish that the broker refused, and the reason.
        keeps_session: whether the broker queues messages for us while we are disconnected.

    Attributes:
        outbox: the publishes with QoS 1.
        lost: why the connection is gone, once it is.
        is_up: whether the broker has accepted the connection and it is not gone.
        max_packet: bytes of the largest packet that the broker accepts; None if not stated.
    """

    def __init__(
        self,
        address: BrokerAddress,
        *,
        client_id: str,
        protocol: str,
        keepalive: int,
        will: Outgoing | None,
        receive: Callable[[Inbound], None],
        denied: Callable[[str, str], None],
        keeps_session: bool = True,
    ) -> None:
        is_v5 = protocol == V5
        self._log = PahoLog()
        self._mqtt = aiomqtt.Client(
            address.host,
            address.port,
            username=address.username,
            password=address.password,
            logger=self._log.logger,
            identifier=client_id,
            protocol=aiomqtt.ProtocolVersion.V5 if is_v5 else aiomqtt.ProtocolVersion.V311,
            will=aiomqtt.Will(will.topic, will.payload, will.qos, will.retain) if will else None,
            clean_session=None if is_v5 else not keeps_session,
            timeout=CONNECT_SECONDS,
        )
        # paho notices a silent broker after two of its keepalives and two ticks.
        self._silence = max(1, keepalive - max(1, keepalive // 5))
        self.protocol = protocol
        self.outbox = Outbox(self._publish)
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[LinkError] = self._loop.create_future()
        self.is_up = False
        self.max_packet: int | None = None
        self._welcome: asyncio.Future[None] = self._loop.create_future()
        self._dialed: Any = None
        self._address = address
        self._receive = receive
        self._denied = denied
        self._keeps_session = keeps_session
        self._paho = self._mqtt._client
        # aiomqtt still handles the answers to subscriptions.
        self._paho.manual_ack_set(True)
        self._paho.on_connect = self._on_connect
        self._paho.on_disconnect = self._on_disconnect
        self._paho.on_message = self._on_message
        self._pump = SocketPump(
            self._paho,
            confirmed=self._on_publish,
            has_read=self._has_read,
            ticked=self._ticked,
            cannot_read=self._cannot_read,
        )

    @property
    def unwritten(self) -> int:
        """Messages of QoS 0 that did not fit into the socket's buffer."""
        return len(self._pump.unwritten)

    @property
    def waiting(self) -> int:
        """Messages that are not written, or not confirmed by the broker."""
        return self.unwritten + len(self.outbox)

    async def open(self) -> None:
        """Connect and wait until the broker accepts.

        Raises:
            LinkError: either failed.
        """
        await self.dial()
        await self.greet()

    async def dial(self) -> None:
        """Open the socket, without sending anything.

        Raises:
            LinkError: it cannot be opened within `CONNECT_SECONDS`.
        """
        sock = self._dialed = await on_thread(open_socket, self._address)
        self._paho._create_socket = lambda: sock  # type: ignore[method-assign]

    async def greet(self) -> None:
        """Send CONNECT and wait for the answer.

        Raises:
            LinkError: it is a refusal, or does not come within `CONNECT_SECONDS`.
        """
        options = connect_options(keeps_session=self._keeps_session) if self.protocol == V5 else {}
        self._paho.connect(self._address.host, self._address.port, self._silence, **options)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await _first(self._welcome, self.lost)
        except TimeoutError:
            raise unreachable(TimeoutError()) from None
        if self.lost.done():
            raise self.lost.result()

    async def subscribe_all(
        self, subscriptions: Sequence[tuple[str, int]], watched: str | None
    ) -> None:
        """Subscribe to topic filters with their QoS.

        Args:
            watched: another filter, of which only retained messages of QoS 0 matter.

        Raises:
            LinkError: the broker refuses one, or does not answer, or the connection is gone.
        """
        filters = topic_filters(subscriptions, watched, is_v5=self.protocol == V5)
        if not filters:
            return
        answer = asyncio.ensure_future(self._mqtt.subscribe(filters))
        try:
            await _first(answer, self.lost)
            if self.lost.done():
                raise self.lost.result()
            codes = answer.result()
        except aiomqtt.MqttError:
            raise LinkError(
                "the broker does not answer a subscription", was_connected=True
            ) from None
        finally:
            answer.cancel()
        check_subscribed(subscriptions, codes)

    def fits(self, message: Outgoing) -> bool:
        """Whether a message is no larger than the broker accepts, as far as it has stated a
        limit."""
        return self.max_packet is None or message.packet_bytes <= self.max_packet

    def publish(self, message: Outgoing, confirmation: Confirmation | None = None) -> bool:
        """Put a message into the socket's queue, or into the outbox; returns whether that
        succeeded.

        Args:
            confirmation: for a message of QoS 1, receives the outcome.
        """
        if not self.is_up:
            settle(confirmation, Outcome.LOST)
            return False
        if not self.fits(message):
            self._denied(message.topic, f"it takes packets of {self.max_packet:,} bytes at most")
            settle(confirmation, Outcome.TOO_LARGE)
            return False
        if message.qos == 0:
            return self._publish(message) is not None
        self.outbox.add(message, confirmation)
        return True

    def _publish(self, message: Outgoing) -> int | None:
        """Put a message into the socket's queue; returns its packet identifier, or None on
        failure."""
        properties = None
        if message.correlation is not None and self.protocol == V5:
            properties = publish_properties(message.correlation)
        info = self._paho.publish(
            message.topic, message.payload, message.qos, message.retain, properties
        )
        if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
            return None
        if message.qos == 0:
            self._pump.unwritten.append(info)
        return info.mid

    async def say_goodbye(self, seconds: float) -> None:
        """Write pending messages and DISCONNECT, within `seconds`, and close."""
        if self.is_up:
            self._paho.disconnect()
            await asyncio.wait({self.lost}, timeout=seconds)
        self.shut()

    def shut(self) -> None:
        """Close everything; if it was up, the broker publishes the will."""
        self._lose(LinkError("we closed the connection", was_connected=self.is_up))
        if self._dialed is not None:
            self._pump.forget(self._dialed)
            self._dialed.close()

    def _lose(self, error: LinkError) -> None:
        """Settle all waiters. The socket stays open until `shut`: paho calls this under a lock that
        closing takes."""
        if self.lost.done():
            return
        self.lost.set_result(error)
        self.is_up = False
        self._pump.stop()
        self.outbox.close()

    # Called by paho.

    def _on_connect(
        self,
        client: PahoClient,
        userdata: Any,
        flags: Any,
        reason_code: ReasonCode,
        properties: Properties | None = None,
    ) -> None:
        if reason_code.is_failure:
            self._lose(refused(reason_code.value, str(reason_code)))
            return
        # paho reads these two and ignores both.
        self.outbox.window = min(getattr(properties, "ReceiveMaximum", WINDOW), WINDOW)
        self.max_packet = getattr(properties, "MaximumPacketSize", None)
        self.is_up = True
        if not self._welcome.done():
            self._welcome.set_result(None)

    def _on_disconnect(
        self,
        client: PahoClient,
        userdata: Any,
        flags: DisconnectFlags,
        reason_code: ReasonCode,
        properties: Properties | None = None,
    ) -> None:
        if flags.is_disconnect_packet_from_server:
            self._lose(dismissed(reason_code.value, str(reason_code)))
        elif reason_code.value == KEEPALIVE_TIMEOUT:
            self._lose(LinkError("the broker has fallen silent", was_connected=self.is_up))
        elif reason_code.value == PROTOCOL_ERROR:
            self._lose(unreadable(was_connected=self.is_up))
        else:
            shows = not self._address.is_tls or self._address.cert_file is not None
            self._lose(broken(self._log.error, was_connected=self.is_up, shows_certificate=shows))

    def _on_message(self, client: PahoClient, userdata: Any, message: MQTTMessage) -> None:
        acknowledge_now(self._dialed)
        acknowledge = partial(self._acknowledge, message.mid) if message.qos else None
        self._receive(inbound(message, acknowledge))

    def _acknowledge(self, mid: int) -> None:
        if self.is_up:
            self._paho.ack(mid, 1)

    def _on_publish(
        self,
        client: PahoClient,
        userdata: Any,
        mid: int,
        reason_code: ReasonCode,
        properties: Properties | None = None,
    ) -> None:
        acknowledge_now(self._dialed)
        outcome = Outcome.REFUSED if reason_code.is_failure else Outcome.ACKNOWLEDGED
        message = self.outbox.confirm(mid, outcome)
        if message is not None and outcome is Outcome.REFUSED:
            self._denied(message.topic, str(reason_code).lower())

    # Called by the pump.

    def _has_read(self) -> None:
        if self.is_up:
            self.outbox.pump()

    def _ticked(self) -> None:
        if self.outbox.is_owed():
            self._lose(LinkError("the broker does not confirm what it gets", was_connected=True))

    def _cannot_read(self) -> None:
        self._lose(unreadable(was_connected=self.is_up))


async def _first(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
