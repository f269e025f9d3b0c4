"""EmbeddedBroker: amqtt on the loopback, for trying things out without installing a broker."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from amqtt.broker import Broker
    from amqtt.session import Session

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
START_SECONDS = 10.0
STOP_SECONDS = 5.0
# How long the session of a disconnected client is kept, and how many messages for it, as in
# Mosquitto.
SESSION_SECONDS = 86_400
MOST_QUEUED = 1000


class BrokerError(Exception):
    """The embedded broker cannot be started; the message says why."""


class EmbeddedBroker:
    """A broker inside this process, on its own thread, for clients on this machine.

    It speaks MQTT 3.1.1, asks for no password, and keeps nothing when it stops. Until then it keeps
    sessions that are persistent. As a context, it is started and stopped.

    Args:
        port: the port to listen on; 0 is any free port.
        websocket_port: a port for websockets; 0 is any free port, None is none.
        host: a name or address of the loopback. It listens on all addresses of a name.
    """

    def __init__(
        self, port: int = 1883, websocket_port: int | None = None, host: str = HOST
    ) -> None:
        self._host = host
        self._addresses = [host]
        self._ports = {"default": port}
        if websocket_port is not None:
            self._ports["ws"] = websocket_port
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._started = threading.Event()
        self._failure: BrokerError | None = None

    @property
    def url(self) -> str:
        """The broker's URL, such as mqtt://127.0.0.1:1883. Once started, it has the actual port."""
        return f"mqtt://{_in_url(self._host)}:{self._ports['default']}"

    @property
    def websocket_url(self) -> str:
        """The broker's URL for websockets."""
        return f"ws://{_in_url(self._host)}:{self._ports['ws']}"

    def start(self) -> str:
        """Start the broker; returns its URL.

        Raises:
            BrokerError: amqtt is not installed, a port is taken, the host has no address here, or
                the broker does not start.
        """
        try:
            import amqtt.broker  # noqa: F401
        except ImportError:
            raise BrokerError(
                "the embedded broker needs amqtt, which is not installed:"
                " pip install 'batchdeck[broker]'"
            ) from None
        for port in self._ports.values():
            self._addresses = _free_addresses(self._host, port)
        self._thread = threading.Thread(target=self._run, name="mqtt-broker", daemon=True)
        self._thread.start()
        if not self._started.wait(START_SECONDS):
            self._failure = BrokerError(
                f"the embedded broker has not started in {START_SECONDS:g} s"
            )
        if self._failure is not None:
            raise self._failure
        return self.url

    def stop(self) -> None:
        """Stop the broker, if it was started. This takes at most `STOP_SECONDS`."""
        if self._thread is None or self._loop is None or self._stop is None:
            return
        try:
            self._loop.call_soon_threadsafe(self._stop.set)
        except RuntimeError:
            log.debug("the embedded broker had ended")
        self._thread.join(STOP_SECONDS)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:
            self._failure = BrokerError(f"the embedded broker failed: {error}")
            if self._started.is_set():
                log.error("%s", self._failure)
            self._started.set()

    async def _serve(self) -> None:
        from amqtt.broker import Broker

        self._loop = asyncio.get_running_loop()
        # When a client disconnects at a bad moment, amqtt leaves the report to the loop.
        self._loop.set_exception_handler(_log_error)
        self._stop = asyncio.Event()
        # amqtt warns of each client that tries MQTT 5 first, as most do.
        logging.getLogger("amqtt").setLevel(logging.ERROR)
        logging.getLogger("amqtt.broker").addFilter(_is_no_silent_client)
        broker = Broker(self._config())
        _spare_others(broker)
        _close_at_the_end(broker)
        _persist_sessions(broker)
        _preserve_qos(broker)
        await broker.start()
        for name in self._ports:
            self._ports[name] = _port_of(broker, name)
        self._started.set()
        try:
            await self._stop.wait()
        finally:
            try:
                async with asyncio.timeout(STOP_SECONDS / 2):
                    await broker.shutdown()
            except TimeoutError:
                log.debug("the embedded broker did not end its connections")

    def _config(self) -> dict[str, Any]:
        kinds = {"default": "tcp", "ws": "ws"}
        return {
            "listeners": {
                name if place == 0 else f"{name} {address}": {
                    "type": kinds[name],
                    # Without brackets: amqtt 0.12 treats those as part of an IPv6 address.
                    "bind": f"{address}:{port}",
                }
                for name, port in self._ports.items()
                for place, address in enumerate(self._addresses)
            },
            "session_expiry_interval": SESSION_SECONDS,
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {}},
        }


def _free_addresses(host: str, port: int) -> list[str]:
    """The addresses of a host that can be listened on. They are tried here, because amqtt logs a
    traceback if it cannot listen.

    Raises:
        BrokerError: the port is taken on one of the host's addresses, or none of them can be
            listened on.
    """
    free: list[str] = []
    why = "it has no address"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        found, why = [], error.strerror or str(error)
    for family, _, _, _, place in dict.fromkeys(found):
        with socket.socket(family) as probe:
            # amqtt listens with this option, too.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(place)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise BrokerError(
                        f"port {port} of {host} is taken, perhaps by another broker; use that by"
                        f" --mqtt, or state another port as --mqtt mqtt://{_in_url(host)}:PORT"
                    ) from None
                why = error.strerror or str(error)
            else:
                free.append(str(place[0]))
    if not free:
        raise BrokerError(f"port {port} of {host} cannot be listened on: {why}")
    return free


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _close_at_the_end(broker: Broker) -> None:
    """Close every connection when it ends. amqtt forgets a client that disconnects before its
    CONNECT: of 200 such connections, it left 35 open."""
    serve = broker.stream_connected

    async def serve_and_close(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, listener_name: str
    ) -> None:
        try:
            await serve(reader, writer, listener_name)
        finally:
            writer.close()

    broker.stream_connected = serve_and_close


def _persist_sessions(broker: Broker) -> None:
    """Deliver the messages for an absent client when it is back. amqtt forgets the sessions of
    clients without a name, which ours all are, and marks kept messages as retained.
    """
    authenticate, retain = broker._authenticate, broker._retain_broadcast_message

    async def authenticate_by_name(session: Session, listener: Any) -> bool:
        is_known: bool = await authenticate(session, listener)
        session.is_anonymous = False
        return is_known

    async def retain_some(broadcast: Any, qos: int, session: Session) -> None:
        if session.retained_messages.qsize() < MOST_QUEUED:
            await retain(broadcast, qos, session)

    async def publish_retained(session: Session) -> None:
        handler = broker._get_handler(session)
        kept = []
        while handler is not None and not session.retained_messages.empty():
            one = session.retained_messages.get_nowait()
            kept.append(handler.mqtt_publish(one.topic, one.data, one.qos, retain=False))
        await asyncio.gather(*kept)

    broker._authenticate = authenticate_by_name
    broker._retain_broadcast_message = retain_some
    broker._publish_session_retained_messages = publish_retained


class _Published(dict[str, Any]):
    """The messages that amqtt sends to subscribers, with the quality of service of their
    publication."""

    def get(self, key: str, default: Any = None) -> Any:
        """As of a map; `qos` is the lower one of the publication's and the subscription's."""
        found = super().get(key)
        return default if found is None else min(found, default)


def _preserve_qos(broker: Broker) -> None:
    """Deliver messages with the quality of service of their publication, or of the subscription if
    that is lower. amqtt takes the subscription's, so that deltas of 0 were acknowledged one by one,
    and kept for clients that were away.
    """
    deliver = broker._handle_message_delivery
    published: ContextVar[int | None] = ContextVar("published", default=None)

    async def deliver_as_published(session: Session, handler: Any, waiter: Any) -> bool:
        message = waiter.result()
        published.set(None if message is None else message.qos)
        try:
            goes_on: bool = await deliver(session, handler, waiter)
            return goes_on
        finally:
            published.set(None)

    async def broadcast(
        session: Session | None, topic: str | None, data: Any, qos: int | None = None
    ) -> None:
        qos = published.get() if qos is None else qos
        copy = _Published(session=session, topic=topic, data=data)
        await broker._broadcast_queue.put(copy if qos is None else _Published(copy, qos=qos))

    broker._handle_message_delivery = deliver_as_published
    broker._broadcast_message = broadcast


def _is_no_silent_client(record: logging.LogRecord) -> bool:
    """Whether a record is not about a client that connects and leaves without a CONNECT. That is no
    error: programs like ours check that way whether a broker listens."""
    return not record.getMessage().startswith("No data from")


def _spare_others(broker: Broker) -> None:
    """Send clients only the retained messages that they subscribed to. amqtt sends each new client
    those that any client has subscribed to."""
    publish = broker._publish_retained_messages_for_subscription

    async def publish_to_subscriber(subscription: tuple[str, int], session: Session) -> None:
        subscribers = broker._subscriptions.get(subscription[0], ())
        if any(subscriber.client_id == session.client_id for subscriber, _ in subscribers):
            await publish(subscription, session)

    broker._publish_retained_messages_for_subscription = publish_to_subscriber


def _port_of(broker: Broker, listener: str) -> int:
    """The port of a listener, which amqtt does not expose."""
    server = broker._servers[listener].instance
    port: int = next(iter(server.sockets)).getsockname()[1]
    return port


def _log_error(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    log.debug("embedded broker: %s", context.get("exception") or context["message"])
