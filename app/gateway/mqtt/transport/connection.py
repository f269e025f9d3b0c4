"""Connection: one connection to a broker, on aiomqtt and paho, private parts of theirs too.

What is not left as aiomqtt 2.5.1 and paho 2.2 have it, and why:

- Messages go to their owner as they come, and are acknowledged when it says so; aiomqtt
  acknowledges first.
- A publish is confirmed with the broker's reason code; aiomqtt takes a refusal for a success.
- A connection is made once. paho sends after a reconnect what was published while there was none.
- The socket is opened by `dialing`. aiomqtt's thread goes on connecting when its task is cancelled,
  and holds up the end of the program.
- An error in reading ends the connection; aiomqtt keeps it for who reads its queue.
- Writing is tried once in a turn of the loop, not announced to the selector for each message: a
  publish of QoS 0 takes 9 us of CPU, or 18 alone in its turn, not the 120 to 240 of aiomqtt's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import aiomqtt
from paho.mqtt.client import Client as PahoClient
from paho.mqtt.client import DisconnectFlags, MQTTMessage
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

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

log = logging.getLogger(__name__)

V5, V311 = "5", "3.1.1"

SESSION_SECONDS = 3600
MAX_PACKET_BYTES = 1 << 20
# Messages that the broker may send before it has an acknowledgement: what may lie about here.
MAX_UNACKNOWLEDGED = 256
# What is not confirmed by then will not be on this connection.
CONFIRM_SECONDS = 60.0
_TICK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to publish.

    Attributes:
        qos: 0 or 1.
        correlation: MQTT 5's CorrelationData; 3.1.1 has no place for it.
    """

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = False
    correlation: bytes | None = None


@dataclass(frozen=True, slots=True)
class Inbound:
    """A message that came.

    Attributes:
        retained: the broker has kept it, or its sender wants that; the latter only MQTT 5 tells.
        duplicate: the broker may have sent it before.
        response_topic: MQTT 5's ResponseTopic, if the sender set one.
        correlation: MQTT 5's CorrelationData, likewise.
        acknowledge: None where nothing is to be acknowledged (QoS 0).
    """

    topic: str
    payload: bytes
    retained: bool = False
    duplicate: bool = False
    response_topic: str | None = None
    correlation: bytes | None = None
    acknowledge: Callable[[], None] | None = field(default=None, repr=False, compare=False)

    def ack(self) -> None:
        """Tell the broker that it is ours now; of no effect when its connection has gone."""
        if self.acknowledge is not None:
            self.acknowledge()


@dataclass(slots=True)
class _Unconfirmed:
    """A publish of QoS 1: when, the how manyth, and who waits for it."""

    time: float
    number: int
    topic: str
    confirmed: asyncio.Future[bool] | None


class Connection(aiomqtt.Client):
    """One connection, from before it is made until it is gone.

    Args:
        protocol: `V5` or `V311`.
        denied: gets the topic of each publish that the broker refused, and why.
        keeps_session: whether the broker is to keep what comes while we are away.

    Attributes:
        lost: why the connection is gone, once it is.
        is_up: whether the broker has let us in and the connection is not gone.
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
        self._errors = _LastError()
        # Neither registered nor below another: what paho says goes nowhere else.
        logger = logging.Logger("paho", logging.ERROR)
        logger.addHandler(self._errors)
        super().__init__(
            address.host,
            address.port,
            username=address.username,
            password=address.password,
            logger=logger,
            identifier=client_id,
            protocol=aiomqtt.ProtocolVersion.V5 if is_v5 else aiomqtt.ProtocolVersion.V311,
            will=aiomqtt.Will(will.topic, will.payload, will.qos, will.retain) if will else None,
            clean_session=None if is_v5 else not keeps_session,
            timeout=CONNECT_SECONDS,
        )
        # paho notices a silent broker after two of its keepalives and two ticks.
        self._silence = max(1, keepalive - max(1, keepalive // 5))
        self.protocol = protocol
        self.lost: asyncio.Future[LinkError] = self._loop.create_future()
        self.is_up = False
        self._dialed: Any = None
        self._address = address
        self._receive = receive
        self._denied = denied
        self._keeps_session = keeps_session
        self._unconfirmed: dict[int, _Unconfirmed] = {}
        self._num_published = 0
        self._last_confirmed = 0
        self._confirmed_at = 0.0
        self._is_writing = False
        self._max_packet: int | None = None
        paho = self._client
        paho.manual_ack_set(True)
        # Without it paho makes no reason code for each QoS 0 publish, which is 10 of its 19 us of
        # CPU; and PUBACKs are told from what was only written.
        paho.on_publish = None
        self._paho_confirmed = paho._do_on_publish
        paho._do_on_publish = self._confirmed  # type: ignore[method-assign]

    @property
    def waiting(self) -> int:
        """Messages that are not written, or not confirmed by the broker."""
        return max(len(self._client._out_packet), len(self._client._out_messages))

    async def open(self) -> None:
        """Connect and be let in.

        Raises:
            LinkError: either failed.
        """
        await self.dial()
        await self.greet()

    async def dial(self) -> None:
        """Open the socket; nothing is said yet.

        Raises:
            LinkError: it cannot be opened within `CONNECT_SECONDS`.
        """
        sock = self._dialed = await on_thread(open_socket, self._address)
        paho = self._client
        paho._create_socket = lambda: sock  # type: ignore[method-assign]

    async def greet(self) -> None:
        """Send CONNECT and wait for the answer.

        Raises:
            LinkError: it is a refusal, or does not come within `CONNECT_SECONDS`.
        """
        host, port = self._address.host, self._address.port
        if self.protocol == V5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = SESSION_SECONDS if self._keeps_session else 0
            properties.MaximumPacketSize = MAX_PACKET_BYTES
            properties.ReceiveMaximum = MAX_UNACKNOWLEDGED
            self._client.connect(
                host,
                port,
                self._silence,
                clean_start=not self._keeps_session,
                properties=properties,
            )
        else:
            self._client.connect(host, port, self._silence)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await _first(self._connected, self.lost)
        except TimeoutError:
            raise unreachable(TimeoutError()) from None
        if self.lost.done():
            raise self.lost.result()

    async def subscribe_all(
        self, subscriptions: Sequence[tuple[str, int]], watched: str | None
    ) -> None:
        """Subscribe to topic filters with their QoS.

        Args:
            watched: another, of whose messages only those of QoS 0 that the broker has kept are of
                interest.

        Raises:
            LinkError: the broker refuses one, or does not answer, or the connection is gone.
        """
        filters: list[Any]
        if self.protocol == V5:
            # As published: a request that its sender wants kept is seen to be one at once.
            filters = [
                (topic, SubscribeOptions(qos, retainAsPublished=True))
                for topic, qos in subscriptions
            ]
            filters += [(watched, SubscribeOptions(0))] if watched else []
        else:
            filters = [*subscriptions, *([(watched, 0)] if watched else [])]
        if not filters:
            return
        answer = asyncio.ensure_future(self.subscribe(filters))
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
        for (topic, _), code in zip(subscriptions, codes, strict=False):
            if isinstance(code, ReasonCode) and code.is_failure:
                reason = str(code).lower()
                raise LinkError(f"the broker refuses the subscription to {topic!r}: {reason}")

    def publish_now(self, message: Outgoing, confirmed: asyncio.Future[bool] | None) -> bool:
        """Hand a message to the socket's queue; whether it got there.

        Args:
            confirmed: told whether the broker took it; False if the connection goes first. For
                QoS 1.
        """
        if not self.is_up:
            return False
        if self._max_packet is not None and _packet_bytes(message) > self._max_packet:
            self._denied(message.topic, f"it takes packets of {self._max_packet:,} bytes at most")
            return False
        properties = None
        if message.correlation is not None and self.protocol == V5:
            properties = _correlation(message.correlation)
        info = self._client.publish(
            message.topic, message.payload, message.qos, message.retain, properties
        )
        if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
            return False
        if message.qos:
            self._num_published += 1
            self._unconfirmed[info.mid] = _Unconfirmed(
                time.monotonic(), self._num_published, message.topic, confirmed
            )
        return True

    async def say_goodbye(self, seconds: float) -> None:
        """Write what waits and DISCONNECT, for `seconds` at most, and be gone."""
        if self.is_up:
            self._client.disconnect()
            await asyncio.wait({self.lost}, timeout=seconds)
        self.shut()

    def shut(self) -> None:
        """Leave nothing open; if it was up, the broker publishes the will."""
        self._lose(LinkError("we closed the connection", was_connected=self.is_up))
        self._client._sock_close()
        if self._dialed is not None:
            self._dialed.close()

    def _lose(self, error: LinkError) -> None:
        """Leave nobody waiting. The socket stays for `shut`: paho calls this under a lock that
        closing takes."""
        if self.lost.done():
            return
        self.lost.set_result(error)
        self.is_up = False
        unconfirmed, self._unconfirmed = self._unconfirmed, {}
        for publish in unconfirmed.values():
            _settle(publish.confirmed, False)

    # What paho and aiomqtt call.

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
        # paho reads these two and heeds neither.
        most = getattr(properties, "ReceiveMaximum", client._max_inflight_messages)
        client._max_inflight_messages = min(most, client._max_inflight_messages)
        self._max_packet = getattr(properties, "MaximumPacketSize", None)
        self.is_up = True
        super()._on_connect(client, userdata, flags, reason_code, properties)

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
            self._lose(
                broken(self._errors.error, was_connected=self.is_up, shows_certificate=shows)
            )

    def _on_message(self, client: PahoClient, userdata: Any, message: MQTTMessage) -> None:
        acknowledge_now(self._dialed)
        try:
            topic = message.topic
        except UnicodeDecodeError:
            # No broker lets that pass; unacknowledged it would come for ever.
            topic = ""
        properties = message.properties
        self._receive(
            Inbound(
                topic=topic,
                payload=bytes(message.payload),
                retained=message.retain,
                duplicate=message.dup,
                response_topic=getattr(properties, "ResponseTopic", None),
                correlation=getattr(properties, "CorrelationData", None),
                acknowledge=partial(self._acknowledge, message.mid) if message.qos else None,
            )
        )

    def _acknowledge(self, mid: int) -> None:
        if self.is_up:
            self._client.ack(mid, 1)

    def _confirmed(
        self, mid: int, reason_code: ReasonCode, properties: Properties
    ) -> MQTTErrorCode:
        acknowledge_now(self._dialed)
        code = self._paho_confirmed(mid, reason_code, properties)
        publish = self._unconfirmed.pop(mid, None)
        if publish is not None:
            self._last_confirmed = publish.number
            self._confirmed_at = time.monotonic()
            if reason_code.is_failure:
                self._denied(publish.topic, str(reason_code).lower())
            _settle(publish.confirmed, not reason_code.is_failure)
        return code

    async def _misc_loop(self) -> None:
        while self._client.loop_misc() == MQTTErrorCode.MQTT_ERR_SUCCESS:
            if self._is_owed():
                self._lose(
                    LinkError("the broker does not confirm what it gets", was_connected=True)
                )
            await asyncio.sleep(_TICK_SECONDS)

    def _is_owed(self) -> bool:
        """Whether the oldest publish will not be confirmed any more: nothing has been for long, or
        one after it was, and brokers confirm in order (MQTT 5, 4.6)."""
        oldest = next(iter(self._unconfirmed.values()), None)
        if oldest is None:
            return False
        since = time.monotonic() - CONFIRM_SECONDS
        was_passed = self._last_confirmed > oldest.number
        return oldest.time < since and (was_passed or self._confirmed_at < since)

    def _on_socket_open(self, client: PahoClient, userdata: Any, sock: Any) -> None:
        # At once: a turn of the loop later, as aiomqtt has it, the socket may be closed.
        self._loop.add_reader(sock.fileno(), self._read)
        self._misc_task = self._loop.create_task(self._misc_loop())

    def _read(self) -> None:
        try:
            self._client.loop_read()
            # What TLS has decrypted the selector does not see.
            while (pending := getattr(self._client.socket(), "pending", None)) and pending():
                self._client.loop_read()
        except Exception:
            # Of a packet that it cannot take apart paho may raise anything.
            log.debug("a packet of the broker cannot be read", exc_info=True)
            self._lose(unreadable(was_connected=self.is_up))

    def _on_socket_register_write(self, client: PahoClient, userdata: Any, sock: Any) -> None:
        # Not at once: paho holds a lock while it calls for a message, which writing takes too.
        self._loop.call_soon(self._write)

    def _on_socket_unregister_write(self, client: PahoClient, userdata: Any, sock: Any) -> None:
        if self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(sock.fileno())

    def _write(self) -> None:
        if self.lost.done():
            return
        self._client.loop_write()
        sock = self._client.socket()
        if sock is not None and self._client.want_write() and not self._is_writing:
            self._is_writing = True
            self._loop.add_writer(sock.fileno(), self._write)


def _packet_bytes(message: Outgoing) -> int:
    """At most what its PUBLISH takes: header, identifier and lengths make 20."""
    return 20 + len(message.topic.encode()) + len(message.payload) + len(message.correlation or b"")


async def _first(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def _settle(future: asyncio.Future[bool] | None, value: bool) -> None:
    if future is not None and not future.done():
        future.set_result(value)


@lru_cache(maxsize=1024)
def _correlation(data: bytes) -> Properties:
    """Properties of a PUBLISH; making them takes 10 us of CPU, publishing 9."""
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.CorrelationData = data
    return properties


class _LastError(logging.Handler):
    """Keeps what paho logs about its socket, which it tells in no other way."""

    def __init__(self) -> None:
        super().__init__()
        self.error: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        for argument in record.args or ():
            if isinstance(argument, BaseException):
                self.error = argument
