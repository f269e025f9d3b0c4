"""Dialing: opens sockets to brokers on threads, so that the event loop does not wait for them."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from paho.mqtt.client import WebsocketConnectionError
from paho.mqtt.client import _WebsocketWrapper as PahoWebsocket

from app.gateway.mqtt.transport.address import AddressError, BrokerAddress
from app.gateway.mqtt.transport.errors import LinkError, unreachable

T = TypeVar("T")

CONNECT_SECONDS = 10.0
_QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)  # Linux only


def open_socket(address: BrokerAddress) -> Any:
    """Connect to a broker, with TLS and as a websocket if the address says so. This blocks.

    Raises:
        OSError: the connection failed.
        AddressError: the files for TLS cannot be used.
    """
    context = address.tls_context()
    place = (address.host, address.port)
    sock = socket.create_connection(place, timeout=CONNECT_SECONDS)
    try:
        # A delta must not wait until the broker has acknowledged the previous one.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            sock = context.wrap_socket(sock, server_hostname=address.host)
        return Websocket(address, sock) if address.is_websocket else sock
    except BaseException:
        sock.close()
        raise


def acknowledge_now(sock: Any) -> None:
    """Make the kernel send its acknowledgement at once.

    Otherwise Linux waits up to 40 ms for data to send with it, and a broker without TCP_NODELAY,
    which is Mosquitto's default, sends its next packet only then. The option resets quickly, so
    this is called for each packet that comes.
    """
    if _QUICKACK is not None and isinstance(sock, socket.socket):
        with suppress(OSError):  # it was closed meanwhile
            sock.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)


async def on_thread(function: Callable[[BrokerAddress], T], address: BrokerAddress) -> T:
    """The result of a blocking function, run on a thread. If that is a socket and the caller was
    cancelled, it is closed.

    Raises:
        LinkError: the function raised, or took longer than `CONNECT_SECONDS`.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if outcome.done():
            _discard(result)
        elif error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result, failure = None, None
        try:
            result = function(address)
        except Exception as error:
            failure = error
        try:
            loop.call_soon_threadsafe(settle, result, failure)
        except RuntimeError:  # the loop has ended
            _discard(result)

    # It is a daemon, so that the program need not wait for a host that does not answer.
    threading.Thread(target=work, name="mqtt-connect", daemon=True).start()
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            return await outcome
    except WebsocketConnectionError:
        raise LinkError("the broker does not speak MQTT over websockets at that path") from None
    except AddressError as error:
        raise LinkError(str(error)) from None
    except UnicodeError:
        raise LinkError("the host is not known: it is not a valid name") from None
    except OSError as error:
        raise unreachable(error) from None


def _discard(result: object) -> None:
    close = getattr(result, "close", None)
    if close is not None:
        close()


class Websocket(PahoWebsocket):
    """paho's websocket with a bug fixed: when the socket accepts only part of a frame, paho forgets
    the rest of the packet and continues in the middle of the next one."""

    def __init__(self, address: BrokerAddress, sock: socket.socket | ssl.SSLSocket) -> None:
        host = f"[{address.host}]" if ":" in address.host else address.host
        try:
            super().__init__(
                socket=sock,
                host=host,
                port=address.port,
                is_ssl=address.is_tls,
                path=address.path,
                extra_headers=None,
            )
        except (LookupError, ValueError):  # an answer that paho cannot parse
            raise WebsocketConnectionError from None

    def send(self, data: bytes | bytearray) -> int:
        if not (sent := super().send(data)):
            # Only part of the frame was sent: the packet stays first in the queue until all of it
            # is sent.
            raise BlockingIOError
        return sent
