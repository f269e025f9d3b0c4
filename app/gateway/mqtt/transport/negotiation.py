"""Negotiation: finds out which version of MQTT a broker speaks, by trying."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from app.gateway.mqtt.transport.address import BrokerAddress
from app.gateway.mqtt.transport.connection import V5, V311, Connection
from app.gateway.mqtt.transport.dialing import on_thread, open_socket
from app.gateway.mqtt.transport.errors import Cause, LinkError

AUTO = "auto"

# Silence after which we probe whether a broker refuses MQTT 5. A broker of 3.1.1 may refuse 5 by
# silence: amqtt 0.12 misreads a CONNECT with properties or a will, and waits for the rest.
SILENCE_SECONDS = 0.5
# The smallest CONNECT of MQTT 5: clean start, keepalive 10 s, no properties, no identifier.
_BARE_CONNECT = bytearray(b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x0a\x00\x00\x00")


async def connect(
    new: Callable[[str], Connection], address: BrokerAddress, protocol: str
) -> Connection:
    """Connect with a protocol; for `AUTO`, with MQTT 5 if the broker speaks it, otherwise with
    3.1.1.

    Args:
        new: makes a connection for a protocol.

    Raises:
        LinkError: no connection could be made.
    """
    if protocol != AUTO:
        connection = new(protocol)
        await connection.open()
        return connection
    connection = new(V5)
    await connection.dial()
    if await _is_let_in(connection, address):
        return connection
    connection = new(V311)
    await connection.open()
    return connection


async def _is_let_in(connection: Connection, address: BrokerAddress) -> bool:
    """Send the CONNECT of MQTT 5; False if the broker speaks only 3.1.1.

    Raises:
        LinkError: it neither accepts the connection nor refuses MQTT 5.
    """
    greeting = asyncio.ensure_future(connection.greet())
    asking: asyncio.Future[bool] | None = None
    try:
        await asyncio.wait({greeting}, timeout=SILENCE_SECONDS)
        if not greeting.done():
            asking = asyncio.ensure_future(_refuses_v5(address))
            await asyncio.wait({greeting, asking}, return_when=asyncio.FIRST_COMPLETED)
            if not greeting.done() and asking.result():
                return False
        await greeting
    except LinkError as error:
        if error.cause is Cause.PROTOCOL:
            return False
        if error.cause is Cause.UNANSWERED and await _refuses_v5(address):
            return False
        raise
    finally:
        greeting.cancel()
        if asking is not None:
            asking.cancel()
    return True


async def _refuses_v5(address: BrokerAddress) -> bool:
    """Whether a broker refuses even a CONNECT that has only the version."""
    try:
        return await on_thread(_ask_bare, address)
    except LinkError:
        return False


def _ask_bare(address: BrokerAddress) -> bool:
    sock = open_socket(address)
    answer = b""
    try:
        sock.send(_BARE_CONNECT)
        while len(answer) < 4 and (more := sock.recv(4 - len(answer))):
            answer += more
    except ConnectionError:
        pass
    finally:
        sock.close()
    # A refusal is a CONNACK with the return code of 3.1.1 or the reason code of 5, or the end of
    # the connection without an answer.
    return not answer or (answer[0] == 0x20 and answer[3:] in (b"\x01", b"\x84"))
